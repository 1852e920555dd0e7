//! Arguments of `eval` and `compare`.

use std::path::PathBuf;

use clap::Args;
use draftsman_contract::TreeRule;

use super::{OpeningArgs, SamplingArgs, TargetArgs, TreeArgs, parse_tree_budget, whole};

#[derive(Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Drafter folder, `none`, `ngram` or `ngram+FOLDER`; may be given more than once.
    #[arg(long, short = 'd', value_name = "DRAFTER")]
    pub(crate) drafter: Vec<String>,
    /// Prompts: JSONL with `messages` or `prompt_ids`, a published suite (docs/eval.md), or `builtin`; may be given more
    /// than once.
    #[arg(long, short, required_unless_present_any = ["validation", "answers"])]
    pub(crate) prompts: Vec<PathBuf>,
    /// Replay these recorded answers of the target (as `data regenerate` writes them) instead of asking it again.
    #[arg(long, conflicts_with_all = ["prompts", "temperature", "top_k", "top_p", "seed", "thinking"])]
    pub(crate) answers: Option<PathBuf>,
    /// Use only the first N prompts of every suite, or `N,M,…` of each in order.
    #[arg(long, visible_alias = "limit", value_delimiter = ',', value_name = "N")]
    pub(crate) num_prompts: Vec<usize>,
    /// Shuffle the prompts with this seed before `--num-prompts` is applied.
    #[arg(long)]
    pub(crate) shuffle_seed: Option<u64>,
    /// Longest answer, in tokens.
    #[arg(long, default_value_t = 128, value_parser = parse_count)]
    pub(crate) max_new_tokens: usize,
    /// Verify at most so many blocks of every speculative answer.
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) max_blocks: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Nodes of the draft trees, e.g. `0,4,16`: a line for each drafter and budget, where 0 drafts chains.
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = parse_tree_budget)]
    pub(crate) tree_budget: Vec<usize>,
    #[command(flatten)]
    pub(crate) trees: TreeArgs,
    /// Also tell what trees and candidates of these numbers would have accepted at the anchors that a drafter's chain
    /// visits.
    #[arg(long, value_delimiter = ',', value_name = "N,M,…", num_args = 0..=1, require_equals = true,
          default_missing_value = "2,4,8,16", value_parser = parse_candidates)]
    pub(crate) what_if: Vec<usize>,
    /// Walk over the target's own answer from one teacher-forced pass, instead of decoding live.
    #[arg(long)]
    pub(crate) replay: bool,
    /// Mean, spread and range of what flows through target and drafters over the target's own answers, and where it is
    /// NaN or infinite.
    #[arg(long, conflicts_with_all = ["replay", "check_replay", "watch", "validation", "what_if", "csv", "html"])]
    pub(crate) stats: bool,
    /// Decode live and replay, and demand that both walks are the same.
    #[arg(long, conflicts_with = "replay")]
    pub(crate) check_replay: bool,
    /// Evaluate every checkpoint of this training run, also those to come, and keep the curve in `--out`. The run folder
    /// is only read. Ends with the run's last step.
    #[arg(long, value_name = "RUN", requires = "out",
          conflicts_with_all = ["drafter", "replay", "check_replay", "validation", "what_if", "csv", "html"])]
    pub(crate) watch: Option<PathBuf>,
    /// With `--watch`: end when the checkpoints that are there are evaluated.
    #[arg(long, requires = "watch")]
    pub(crate) once: bool,
    /// With `--watch`: seconds between two looks at the run.
    #[arg(long, requires = "watch", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) poll_seconds: u64,
    /// Evaluate checkpoints on the validation anchors saved in them (random anchors, not a walk).
    #[arg(long, requires = "drafter", conflicts_with_all = [
        "prompts", "answers", "num_prompts", "shuffle_seed", "max_new_tokens", "max_blocks", "temperature", "top_k", "top_p", "seed", "tree_budget", "tree_seeded", "draft_temperature", "ngram_drafts", "thinking", "replay", "check_replay", "what_if", "csv", "html"])]
    pub(crate) validation: bool,
    #[command(flatten)]
    pub(crate) opening: OpeningArgs,
    /// Drafts per cycle of the n-gram lookup. Default: block_size − 1 of the first drafter, or 7.
    #[arg(long)]
    pub(crate) ngram_drafts: Option<usize>,
    /// Also write the result as JSON to this file.
    #[arg(long, short)]
    pub(crate) out: Option<PathBuf>,
    /// Also write a row for each prompt and drafter to this CSV file.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Also write the result as a page that can be sent: one file, no outside request.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Names of the drafters in tables, where their arguments are not for people.
    #[arg(skip)]
    pub(crate) labels: Vec<String>,
    /// Show the table alone: the page and the file hold the rest.
    #[arg(skip)]
    pub(crate) brief: bool,
}

fn parse_count(text: &str) -> Result<usize, String> {
    whole(text, 1..=1 << 30)
}

/// A gate that any result passes is none.
fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse::<f64>().ok().filter(|ratio| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "expected a number above 0".to_owned())
}

/// More candidates a slot are no drafter's strength.
fn parse_candidates(text: &str) -> Result<usize, String> {
    whole(text, 1..=1024)
}

impl EvalArgs {
    /// How each budget is drafted; each once.
    pub(crate) fn tree_rules(&self) -> Vec<TreeRule> {
        let mut rules: Vec<TreeRule> = Vec::new();
        for &budget in &self.tree_budget {
            let rule = self.trees.rule(budget);
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules
    }

    /// Greedy live decoding, as without any other flag.
    pub(crate) fn greedy(target: TargetArgs) -> Self {
        Self {
            target,
            drafter: Vec::new(),
            prompts: Vec::new(),
            answers: None,
            num_prompts: Vec::new(),
            shuffle_seed: None,
            max_new_tokens: 128,
            max_blocks: None,
            sampling: SamplingArgs::GREEDY,
            tree_budget: vec![0],
            trees: TreeArgs::PLAIN,
            what_if: Vec::new(),
            replay: false,
            stats: false,
            check_replay: false,
            watch: None,
            once: false,
            poll_seconds: 10,
            validation: false,
            opening: OpeningArgs::default(),
            ngram_drafts: None,
            out: None,
            csv: None,
            html: None,
            labels: Vec::new(),
            brief: false,
        }
    }
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// A result of `eval --out`.
    pub(crate) a: PathBuf,
    /// Another one, on the same prompts.
    pub(crate) b: PathBuf,
    /// The line to compare, by its name in both tables. Default: the last one.
    #[arg(long)]
    pub(crate) line: Option<String>,
    /// The line of A, where names differ.
    #[arg(long)]
    pub(crate) line_a: Option<String>,
    /// The line of B, where names differ.
    #[arg(long)]
    pub(crate) line_b: Option<String>,
    /// Exit with 1 when B / A is below this.
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub(crate) fail_under: Option<f64>,
    /// Seed of the interval.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}
