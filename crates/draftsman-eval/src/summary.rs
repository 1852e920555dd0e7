//! From answers to a report.

use draftsman_contract::{AcceptanceStats, ThinkingMode};
use draftsman_data::LoopRule;
use draftsman_decode::{Cycle, GenerateOptions, Generation};
use sha2::{Digest, Sha256};

use crate::report::{
    CycleSpeed, EvalReport, GroupReport, PromptCounts, ProposerReport, REPORT_VERSION, Speed, SpeedReport, WALKED,
    WalkedReport,
};
use crate::walked::committed_before;
use crate::{EvalPrompt, FailedPrompt, LiveWalk, Lossless, PromptRun, ReplayWalk, Walked};

/// Seed of the bootstrap intervals in reports.
const INTERVAL_SEED: u64 = 0;

/// What a report says about its making.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Name of the target.
    pub target: String,
    /// Hash of its layers, where known.
    pub target_layers_sha256: Option<String>,
    /// How answers were decoded.
    pub options: GenerateOptions,
    /// What the chat template was told.
    pub thinking: Option<ThinkingMode>,
    /// What counts as a loop.
    pub loop_rule: LoopRule,
}

/// One answer of one line of the table.
struct Response<'a> {
    prompt: &'a EvalPrompt,
    output_ids: &'a [u32],
    /// Where in the answer a loop begins.
    loop_start: Option<usize>,
    cycles: &'a [Cycle],
    /// Where it was decoded live.
    live: Option<&'a Generation>,
}

impl<'a> Response<'a> {
    fn live(prompt: &'a EvalPrompt, generation: &'a Generation, rule: &LoopRule) -> Self {
        let output_ids = generation.output_ids();
        let loop_start = rule.loop_start(output_ids);
        Self { prompt, output_ids, loop_start, cycles: &generation.cycles, live: Some(generation) }
    }
}

/// The report of a live evaluation. `proposers` are (name, block size) in the order of [`PromptRun::speculative`].
pub fn summarise(walk: &LiveWalk, proposers: &[(String, usize)], settings: &Settings) -> EvalReport {
    let rule = &settings.loop_rule;
    let plain_answers = plain_answers(&walk.runs, rule);
    let plain = line("none", 1, &plain_answers, None);
    let lines = proposers.iter().enumerate().map(|(i, (name, block_size))| {
        let answers: Vec<Response<'_>> = walk
            .runs
            .iter()
            .filter_map(|run| Some(Response::live(&run.prompt, run.speculative.get(i)?, rule)))
            .collect();
        let mut line = line(name, *block_size, &answers, Some(&plain_answers));
        let rate = |of: fn(&SpeedReport) -> Speed| {
            let rate = |speed: &Option<SpeedReport>| speed.as_ref().and_then(|s| of(s).tokens_per_s);
            Some(rate(&line.speed)? / rate(&plain.speed)?)
        };
        let speedups = (rate(|s| s.decode_outside_loops), rate(|s| s.decode_all_tokens));
        (line.decode_speedup_outside_loops, line.decode_speedup_all_tokens) = speedups;
        line.lossless = Some(Lossless::over(walk.runs.iter().filter_map(|run| Some((run, run.speculative.get(i)?)))));
        line
    });
    let lines = lines.collect();
    let looping = plain_answers.iter().filter(|answer| answer.loop_start.is_some()).count();
    EvalReport {
        plain: Some(plain),
        proposers: lines,
        ..report("live", walk.runs.len(), walk.unasked, looping, walk.failed.clone(), settings)
    }
}

/// The report of a replayed evaluation.
pub fn summarise_replay(walk: &ReplayWalk, proposers: &[(String, usize)], settings: &Settings) -> EvalReport {
    let rule = &settings.loop_rule;
    let lines = proposers.iter().enumerate().map(|(i, (name, block_size))| {
        let answers: Vec<Response<'_>> = walk
            .runs
            .iter()
            .filter_map(|run| {
                let (prompt, output_ids) = (&run.prompt, &run.answer.output_ids[..]);
                let loop_start = rule.loop_start(output_ids);
                Some(Response { prompt, output_ids, loop_start, cycles: run.cycles.get(i)?, live: None })
            })
            .collect();
        line(name, *block_size, &answers, None)
    });
    let lines = lines.collect();
    let looping = walk.runs.iter().filter(|run| rule.loop_start(&run.answer.output_ids).is_some()).count();
    EvalReport {
        proposers: lines,
        ..report("replay", walk.runs.len(), walk.unasked, looping, walk.failed.clone(), settings)
    }
}

/// The target alone, as a line of the table.
pub fn plain_report(runs: &[PromptRun], rule: &LoopRule) -> ProposerReport {
    line("none", 1, &plain_answers(runs, rule), None)
}

fn plain_answers<'a>(runs: &'a [PromptRun], rule: &LoopRule) -> Vec<Response<'a>> {
    runs.iter().map(|run| Response::live(&run.prompt, &run.plain, rule)).collect()
}

/// A report without lines.
fn report(
    mode: &'static str,
    prompts: usize,
    unasked: usize,
    looping: usize,
    failed: Vec<FailedPrompt>,
    settings: &Settings,
) -> EvalReport {
    let GenerateOptions { max_new_tokens, max_blocks, temperature, top_k, top_p, seed, .. } = settings.options;
    EvalReport {
        report_version: REPORT_VERSION,
        target: settings.target.clone(),
        target_layers_sha256: settings.target_layers_sha256.clone(),
        statistic: WALKED,
        mode,
        prompts,
        unasked,
        failed,
        max_new_tokens,
        max_blocks,
        temperature,
        top_k,
        top_p,
        seed,
        thinking: settings.thinking,
        loop_rule: settings.loop_rule,
        looping_answers: looping as u64,
        plain: None,
        proposers: Vec::new(),
    }
}

/// A line of the table; `plain` are the target's own answers to the same prompts, for the groups' ratios.
fn line(name: &str, block_size: usize, answers: &[Response<'_>], plain: Option<&[Response<'_>]>) -> ProposerReport {
    let mut walked = Walked::default();
    for answer in answers {
        walked.add_answer(answer.cycles, answer.prompt.ids.len(), answer.loop_start);
    }
    let counts = walked.outside_loops.responses.iter().zip(&walked.all.responses);
    let per_prompt = answers.iter().zip(counts).map(|(answer, (outside, all))| PromptCounts {
        suite: answer.prompt.suite.clone(),
        category: answer.prompt.category.clone(),
        id: answer.prompt.name(),
        prompt_sha256: short_sha256(&answer.prompt.ids),
        cycles_outside_loops: outside.cycles,
        accepted_drafts_outside_loops: outside.accepted,
        cycles: all.cycles,
        accepted_drafts: all.accepted,
        prompt_tokens: answer.prompt.ids.len() as u64,
        answer_tokens: answer.output_ids.len() as u64,
        loop_start: answer.loop_start.map(|at| at as u64),
        decode_s: answer.live.map(Generation::decode_s),
    });
    ProposerReport {
        name: name.to_owned(),
        block_size,
        outside_loops: WalkedReport::new(&walked.outside_loops),
        all_tokens: WalkedReport::new(&walked.all),
        inside_loops: WalkedReport::new(&walked.inside_loops),
        by_position: walked.by_position.report(),
        by_group: groups(answers, &walked, plain),
        what_if: None,
        speed: speed(answers.iter()),
        decode_speedup_outside_loops: None,
        decode_speedup_all_tokens: None,
        lossless: None,
        per_prompt: per_prompt.collect(),
    }
}

/// Every suite in the order of its first answer, each followed by its categories.
fn groups(answers: &[Response<'_>], walked: &Walked, plain: Option<&[Response<'_>]>) -> Vec<GroupReport> {
    let mut keys: Vec<(&str, Option<&str>)> = Vec::new();
    for answer in answers {
        let suite = answer.prompt.suite.as_str();
        for key in [Some((suite, None)), answer.prompt.category.as_deref().map(|category| (suite, Some(category)))] {
            keys.extend(key.filter(|key| !keys.contains(key)));
        }
    }
    let place = |suite: &str| keys.iter().position(|key| key.0 == suite);
    let mut ordered = keys.clone();
    // Stable: within a suite the whole stays first.
    ordered.sort_by_key(|key| place(key.0));
    let report = |(suite, category): (&str, Option<&str>)| {
        let belongs = |answer: &&Response<'_>| {
            let prompt = answer.prompt;
            prompt.suite == suite && (category.is_none() || prompt.category.as_deref() == category)
        };
        let mut stats = AcceptanceStats::new();
        for (_, counts) in answers.iter().zip(&walked.outside_loops.responses).filter(|(answer, _)| belongs(answer)) {
            stats.cycles += counts.cycles;
            stats.accepted += counts.accepted;
            stats.responses.push(*counts);
        }
        let rate = |answers: &[Response<'_>]| speed(answers.iter().filter(belongs))?.decode_outside_loops.tokens_per_s;
        let own = rate(answers);
        GroupReport {
            suite: suite.to_owned(),
            category: category.map(str::to_owned),
            answers_with_cycles: stats.responses.iter().filter(|r| r.cycles > 0).count(),
            cycles: stats.cycles,
            acceptance_length_micro: stats.acceptance_length_micro(),
            acceptance_length_macro: stats.acceptance_length_macro(),
            acceptance_length_micro_interval_95: stats.acceptance_length_interval(INTERVAL_SEED),
            decode_tokens_per_s: own,
            decode_speedup: own.zip(plain.and_then(rate)).map(|(own, plain)| own / plain),
        }
    };
    ordered.into_iter().map(report).collect()
}

/// Enough of a hash to tell prompts apart.
fn short_sha256(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl WalkedReport {
    /// Reads the numbers off the counts.
    pub fn new(stats: &AcceptanceStats) -> Self {
        let shares = stats.acceptance_rates();
        let before = std::iter::once(1.0).chain(shares.iter().copied());
        Self {
            acceptance_length_micro: stats.acceptance_length_micro(),
            acceptance_length_macro: stats.acceptance_length_macro(),
            acceptance_length_micro_interval_95: stats.acceptance_length_interval(INTERVAL_SEED),
            conditional_accepted_share_at_slot: before.zip(&shares).map(|(before, share)| share / before).collect(),
            accepted_share_at_slot: shares,
            cycles_by_accepted_drafts: stats.histogram.clone(),
            cycles: stats.cycles,
            decoded_tokens: stats.accepted + stats.cycles,
            answers_with_cycles: stats.responses.iter().filter(|r| r.cycles > 0).count(),
        }
    }
}

/// Times of answers that were decoded live; none where one was not.
fn speed<'a>(answers: impl Iterator<Item = &'a Response<'a>>) -> Option<SpeedReport> {
    let (mut outside_tokens, mut outside_s) = (0, 0.0);
    let (mut tokens, mut seconds) = (0, 0.0);
    let (mut prompt_tokens, mut prefill_s) = (0, 0.0);
    let (mut cycles, mut draft_s, mut verify_s, mut other_s) = (0u64, 0.0, 0.0, 0.0);
    for answer in answers {
        let generation = answer.live?;
        prompt_tokens += generation.prompt_len as u64;
        prefill_s += generation.prefill_s;
        for (cycle, time) in generation.cycles.iter().zip(&generation.cycle_times) {
            let before = committed_before(cycle, generation.prompt_len, answer.loop_start);
            tokens += cycle.committed as u64;
            seconds += time.total_s;
            outside_tokens += before as u64;
            outside_s += time.total_s * before as f64 / cycle.committed.max(1) as f64;
            cycles += 1;
            draft_s += time.draft_s;
            verify_s += time.verify_s;
            other_s += time.other_s();
        }
    }
    let mean_ms = |seconds: f64| seconds * 1000.0 / cycles as f64;
    let tpot = |tokens: u64, seconds: f64| (tokens > 0).then(|| seconds * 1000.0 / tokens as f64);
    Some(SpeedReport {
        decode_outside_loops: Speed::new(outside_tokens, outside_s),
        decode_all_tokens: Speed::new(tokens, seconds),
        prefill: Speed::new(prompt_tokens, prefill_s),
        tpot_ms_outside_loops: tpot(outside_tokens, outside_s),
        tpot_ms_all_tokens: tpot(tokens, seconds),
        cycle: (cycles > 0).then(|| CycleSpeed {
            draft_ms: mean_ms(draft_s),
            verify_ms: mean_ms(verify_s),
            other_ms: mean_ms(other_s),
        }),
    })
}

impl Speed {
    fn new(tokens: u64, seconds: f64) -> Self {
        let tokens_per_s = (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds);
        Self { tokens, seconds, tokens_per_s }
    }
}
