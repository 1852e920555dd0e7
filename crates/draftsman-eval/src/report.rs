//! Results as plain data: names carry their unit, and every number says which statistic it is.

use draftsman_contract::{AcceptanceStats, Interval};
use draftsman_data::LoopRule;
use draftsman_decode::{Cycle, GenerateOptions, Generation};
use serde::{Deserialize, Serialize};

use crate::walked::committed_before;
use crate::{EvalPrompt, Lossless, PromptRun, TargetAnswer, Walked};

/// Version of [`EvalReport`] as JSON.
pub const REPORT_VERSION: u32 = 2;

/// Seed of the bootstrap intervals in reports.
const INTERVAL_SEED: u64 = 0;

/// What every walked number is a mean over.
const WALKED: &str = "walked anchors (first answer token, then anchor + accepted + 1)";

/// The result of evaluating several proposers on the same prompts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalReport {
    /// [`REPORT_VERSION`].
    pub report_version: u32,
    /// Which statistic the acceptance numbers are.
    pub statistic: &'static str,
    /// `live` or `replay`.
    pub mode: &'static str,
    /// Prompts answered.
    pub prompts: usize,
    /// Budget of every answer.
    pub max_new_tokens: usize,
    /// 0 = greedy.
    pub temperature: f32,
    /// Tokens that may be drawn; 0 = all.
    pub top_k: usize,
    /// Share of the probability that may be drawn; 1 = all.
    pub top_p: f32,
    /// What counts as a loop.
    pub loop_rule: LoopRule,
    /// Answers of the target in which a loop begins.
    pub looping_answers: u64,
    /// The target alone (`none`). Absent in a replay, which does not decode.
    pub plain: Option<ProposerReport>,
    /// Every proposer, in the order given.
    pub proposers: Vec<ProposerReport>,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProposerReport {
    /// `none`, `ngram`, a drafter, `ngram+drafter`.
    pub name: String,
    /// Most tokens of a verified block, anchor included.
    pub block_size: usize,
    /// The headline: tokens outside loops.
    pub outside_loops: WalkedReport,
    /// All tokens.
    pub all_tokens: WalkedReport,
    /// Times; absent in a replay.
    pub speed: Option<SpeedReport>,
    /// tokens/s outside loops over plain decoding's in the same run.
    pub decode_speedup_outside_loops: Option<f64>,
    /// tokens/s over all tokens over plain decoding's in the same run.
    pub decode_speedup_all_tokens: Option<f64>,
    /// Whether the answers are the target's own; absent for the target itself and in a replay.
    pub lossless: Option<Lossless>,
    /// The counts behind the headline, prompt by prompt.
    pub per_prompt: Vec<PromptCounts>,
}

/// Walked acceptance of one answer, outside loops and in all. acceptance_length is (accepted_drafts + cycles) / cycles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptCounts {
    /// Name of the prompt.
    pub id: String,
    /// Verify passes outside loops.
    pub cycles_outside_loops: u64,
    /// Drafts they accepted.
    pub accepted_drafts_outside_loops: u64,
    /// Verify passes.
    pub cycles: u64,
    /// Drafts they accepted.
    pub accepted_drafts: u64,
}

/// Walked acceptance. Absent values mean that no cycle ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WalkedReport {
    /// Tokens per verify pass (accepted drafts + 1), pooled over all passes.
    pub acceptance_length_micro: Option<f64>,
    /// Mean over answers of each one's tokens per verify pass.
    pub acceptance_length_macro: Option<f64>,
    /// 95 % bootstrap interval of the micro value over answers.
    pub acceptance_length_micro_interval_95: Option<Interval>,
    /// Share of passes that accepted at least the 1st, 2nd, ... draft.
    pub accepted_share_at_slot: Vec<f64>,
    /// Passes by accepted drafts: 0, 1, ...
    pub cycles_by_accepted_drafts: Vec<u64>,
    /// Verify passes.
    pub cycles: u64,
    /// Tokens these passes committed.
    pub decoded_tokens: u64,
    /// Answers with at least one pass.
    pub answers_with_cycles: usize,
}

/// Tokens and seconds of one part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Speed {
    /// Tokens made or read.
    pub tokens: u64,
    /// Seconds they took.
    pub seconds: f64,
    /// Their ratio; absent without tokens or time.
    pub tokens_per_s: Option<f64>,
}

/// Times of a proposer. Decoding starts after the first token; prompt reading is apart.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct SpeedReport {
    /// Decoding outside loops. A pass that reaches into a loop counts with its share of tokens.
    pub decode_outside_loops: Speed,
    /// Decoding of all tokens.
    pub decode_all_tokens: Speed,
    /// Reading the prompts, the proposer's reading of their features included.
    pub prefill: Speed,
}

impl Speed {
    fn new(tokens: u64, seconds: f64) -> Self {
        let tokens_per_s = (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds);
        Self { tokens, seconds, tokens_per_s }
    }
}

impl WalkedReport {
    /// Reads the numbers off the counts.
    pub fn new(stats: &AcceptanceStats) -> Self {
        Self {
            acceptance_length_micro: stats.acceptance_length_micro(),
            acceptance_length_macro: stats.acceptance_length_macro(),
            acceptance_length_micro_interval_95: stats.acceptance_length_interval(INTERVAL_SEED),
            accepted_share_at_slot: stats.acceptance_rates(),
            cycles_by_accepted_drafts: stats.histogram.clone(),
            cycles: stats.cycles,
            decoded_tokens: stats.accepted + stats.cycles,
            answers_with_cycles: stats.responses.iter().filter(|r| r.cycles > 0).count(),
        }
    }
}

impl ProposerReport {
    /// A line without times.
    /// `ids` name the answers in the order in which they were added.
    pub fn from_walk<'a>(
        name: &str,
        block_size: usize,
        walked: &Walked,
        ids: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let answers = walked.outside_loops.responses.iter().zip(&walked.all.responses);
        let per_prompt = ids.into_iter().zip(answers).map(|(id, (outside, all))| PromptCounts {
            id: id.to_owned(),
            cycles_outside_loops: outside.cycles,
            accepted_drafts_outside_loops: outside.accepted,
            cycles: all.cycles,
            accepted_drafts: all.accepted,
        });
        Self {
            name: name.to_owned(),
            block_size,
            outside_loops: WalkedReport::new(&walked.outside_loops),
            all_tokens: WalkedReport::new(&walked.all),
            speed: None,
            decode_speedup_outside_loops: None,
            decode_speedup_all_tokens: None,
            lossless: None,
            per_prompt: per_prompt.collect(),
        }
    }

    fn from_generations(name: &str, block_size: usize, answers: &[(&str, &Generation)], rule: &LoopRule) -> Self {
        let mut walked = Walked::default();
        for (_, generation) in answers {
            walked.add_answer(&generation.cycles, generation.prompt_len, rule.loop_start(generation.output_ids()));
        }
        let generations: Vec<&Generation> = answers.iter().map(|(_, generation)| *generation).collect();
        let ids = answers.iter().map(|(id, _)| *id);
        Self { speed: Some(speed(&generations, rule)), ..Self::from_walk(name, block_size, &walked, ids) }
    }

    fn compare_with(&mut self, plain: &Self) {
        let own = self.speed;
        let ratio = |of: fn(&SpeedReport) -> Speed| {
            let rate = |speed: &Option<SpeedReport>| speed.as_ref().and_then(|s| of(s).tokens_per_s);
            Some(rate(&own)? / rate(&plain.speed)?)
        };
        self.decode_speedup_outside_loops = ratio(|s| s.decode_outside_loops);
        self.decode_speedup_all_tokens = ratio(|s| s.decode_all_tokens);
    }
}

fn speed(generations: &[&Generation], rule: &LoopRule) -> SpeedReport {
    let (mut outside_tokens, mut outside_s) = (0, 0.0);
    let (mut tokens, mut seconds) = (0, 0.0);
    let (mut prompt_tokens, mut prefill_s) = (0, 0.0);
    for generation in generations {
        let start = rule.loop_start(generation.output_ids());
        prompt_tokens += generation.prompt_len as u64;
        prefill_s += generation.prefill_s;
        for (cycle, cycle_s) in generation.cycles.iter().zip(&generation.cycle_s) {
            let before = committed_before(cycle, generation.prompt_len, start);
            tokens += cycle.committed as u64;
            seconds += cycle_s;
            outside_tokens += before as u64;
            outside_s += cycle_s * before as f64 / cycle.committed.max(1) as f64;
        }
    }
    SpeedReport {
        decode_outside_loops: Speed::new(outside_tokens, outside_s),
        decode_all_tokens: Speed::new(tokens, seconds),
        prefill: Speed::new(prompt_tokens, prefill_s),
    }
}

fn looping(outputs: impl Iterator<Item = bool>) -> u64 {
    outputs.map(u64::from).sum()
}

/// The target alone, as a line of the table.
pub fn plain_report(runs: &[PromptRun], rule: &LoopRule) -> ProposerReport {
    let plain: Vec<(&str, &Generation)> = runs.iter().map(|run| (run.id.as_str(), &run.plain)).collect();
    ProposerReport::from_generations("none", 1, &plain, rule)
}

/// The report of a live evaluation. `proposers` are (name, block size) in the order of [`PromptRun::speculative`].
pub fn summarise(
    runs: &[PromptRun],
    proposers: &[(String, usize)],
    options: &GenerateOptions,
    rule: &LoopRule,
) -> EvalReport {
    let plain = plain_report(runs, rule);
    let lines = proposers
        .iter()
        .enumerate()
        .map(|(i, (name, block_size))| {
            let own: Vec<(&str, &Generation)> =
                runs.iter().filter_map(|run| Some((run.id.as_str(), run.speculative.get(i)?))).collect();
            let mut line = ProposerReport::from_generations(name, *block_size, &own, rule);
            line.compare_with(&plain);
            line.lossless = Some(Lossless::over(
                runs.iter().filter_map(|run| Some((run.id.as_str(), &run.plain, run.speculative.get(i)?))),
            ));
            line
        })
        .collect();
    EvalReport {
        report_version: REPORT_VERSION,
        statistic: WALKED,
        mode: "live",
        prompts: runs.len(),
        max_new_tokens: options.max_new_tokens,
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        loop_rule: *rule,
        looping_answers: looping(runs.iter().map(|run| rule.loop_start(run.plain.output_ids()).is_some())),
        plain: Some(plain),
        proposers: lines,
    }
}

/// The report of a replayed evaluation: `walks` as [`crate::replay_walk`] returns them.
pub fn summarise_replay(
    walks: &[Vec<Vec<Cycle>>],
    prompts: &[EvalPrompt],
    answers: &[TargetAnswer],
    proposers: &[(String, usize)],
    options: &GenerateOptions,
    rule: &LoopRule,
) -> EvalReport {
    let lines = proposers
        .iter()
        .enumerate()
        .map(|(i, (name, block_size))| {
            let mut walked = Walked::default();
            for ((walk, prompt), answer) in walks.iter().zip(prompts).zip(answers) {
                if let Some(cycles) = walk.get(i) {
                    walked.add_answer(cycles, prompt.ids.len(), rule.loop_start(&answer.output_ids));
                }
            }
            ProposerReport::from_walk(name, *block_size, &walked, prompts.iter().map(|prompt| prompt.id.as_str()))
        })
        .collect();
    EvalReport {
        report_version: REPORT_VERSION,
        statistic: WALKED,
        mode: "replay",
        prompts: walks.len(),
        max_new_tokens: options.max_new_tokens,
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        loop_rule: *rule,
        looping_answers: looping(
            answers[..walks.len().min(answers.len())].iter().map(|a| rule.loop_start(&a.output_ids).is_some()),
        ),
        plain: None,
        proposers: lines,
    }
}
