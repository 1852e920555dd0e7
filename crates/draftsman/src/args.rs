//! The command line: every argument of every command.

mod eval;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use draftsman_contract::{ThinkingMode, TreeRule};
use draftsman_decode::GenerateOptions;
use draftsman_kernels::{DeltaRule, DeviceKind, WeightDtype};
use draftsman_models::TargetOptions;

pub(crate) use eval::{CompareArgs, EvalArgs};

/// Train, evaluate, diagnose and run drafters for speculative decoding.
#[derive(Parser)]
#[command(name = "draftsman", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    /// Machine output: one JSON document on stdout.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// No progress and no remarks on stderr.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Threads of the CPU kernels; results do not depend on it. Default: one per core.
    #[arg(long, global = true, env = "DRAFTSMAN_THREADS", value_parser = parse_threads)]
    pub(crate) threads: Option<usize>,
    /// Fetch models named `org/name[@revision]` that the Hugging Face cache does not hold.
    #[arg(long, global = true)]
    pub(crate) download: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// The main job on an embedded tiny model, from nothing to a report, in three minutes.
    Quickstart(QuickstartArgs),
    /// Show what a target, a drafter or a checkpoint is.
    Inspect(InspectArgs),
    /// Look at training data, or let the target write it.
    #[command(subcommand)]
    Data(DataCommand),
    /// Train a drafter for a target.
    Train(TrainArgs),
    /// Decode with and without drafters and compare.
    Eval(Box<EvalArgs>),
    /// Compare two results of `eval` on the same prompts.
    Compare(CompareArgs),
    /// Write text with a target, alone or with a drafter.
    Generate(GenerateArgs),
    /// Write named intermediate values, to compare with another implementation.
    #[command(subcommand)]
    Trace(TraceCommand),
}

#[derive(Subcommand)]
pub(crate) enum DataCommand {
    /// Show records as tokens with their loss mask, and count them.
    Inspect(DataInspectArgs),
    /// Let the target answer prompts; a killed run continues where it stopped.
    Regenerate(RegenerateArgs),
}

#[derive(Subcommand)]
pub(crate) enum TraceCommand {
    /// Layer outputs and logits of a target.
    Target(TraceTargetArgs),
    /// Context, layer outputs and logits of a drafter.
    Drafter(TraceDrafterArgs),
    /// Training loss and every gradient.
    Loss(TraceLossArgs),
    /// The best-first draft tree of given logits.
    Tree(TraceTreeArgs),
    /// Accepted drafts of given logits against given tokens.
    Acceptance(TraceAcceptanceArgs),
}

impl Command {
    /// The arguments that name a model.
    pub(crate) fn models(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Inspect(a) => vec![&mut a.path],
            Self::Data(DataCommand::Inspect(a)) => vec![&mut a.target],
            Self::Data(DataCommand::Regenerate(a)) => vec![&mut a.target.target],
            Self::Train(a) => vec![&mut a.target.target],
            Self::Eval(a) => vec![&mut a.target.target],
            Self::Generate(a) => vec![&mut a.target.target],
            Self::Trace(TraceCommand::Target(a)) => vec![&mut a.model],
            Self::Trace(TraceCommand::Drafter(a)) => a.models(),
            Self::Trace(TraceCommand::Loss(a)) => a.drafter.models(),
            Self::Quickstart(_)
            | Self::Compare(_)
            | Self::Trace(TraceCommand::Tree(_) | TraceCommand::Acceptance(_)) => Vec::new(),
        }
    }

    /// The arguments that name a drafter or a way to draft: `none`, `ngram`, `MODEL` or `ngram+MODEL`.
    pub(crate) fn drafters(&mut self) -> &mut [String] {
        match self {
            Self::Eval(a) => &mut a.drafter,
            Self::Generate(a) => std::slice::from_mut(&mut a.drafter),
            _ => &mut [],
        }
    }
}

impl TraceDrafterArgs {
    fn models(&mut self) -> Vec<&mut PathBuf> {
        std::iter::once(&mut self.drafter).chain(&mut self.target).collect()
    }
}

/// Where and in which number format a model runs.
#[derive(Args, Clone)]
pub(crate) struct DeviceArgs {
    /// Device: `flex` (CPU) or `wgpu` (needs the cargo feature of that name).
    #[arg(long, default_value = "flex", value_parser = parse_device)]
    pub(crate) device: DeviceKind,
    /// Number format in which the target's weights are kept: `f32`, `bf16` or `f16`; sums are always f32.
    #[arg(long, default_value = "f32", value_parser = parse_dtype)]
    pub(crate) dtype: WeightDtype,
    /// Gated delta layers: `recurrent`, `chunked[:LENGTH]`, or `fla-rounding` (rounds where the fla kernels do).
    #[arg(long, default_value = "recurrent", value_parser = parse_delta_rule)]
    pub(crate) delta_rule: DeltaRule,
    /// Leave the target's layers in its file and read them once a forward: for targets larger than memory.
    #[arg(long)]
    pub(crate) stream: bool,
}

impl DeviceArgs {
    /// The CPU, as without any flag.
    pub(crate) fn cpu() -> Self {
        Self { device: DeviceKind::Flex, dtype: WeightDtype::F32, delta_rule: DeltaRule::Recurrent, stream: false }
    }

    pub(crate) fn options(&self) -> TargetOptions {
        TargetOptions { dtype: self.dtype, streamed: self.stream, delta_rule: self.delta_rule }
    }
}

fn parse_delta_rule(text: &str) -> Result<DeltaRule, String> {
    text.parse().map_err(|e: draftsman_kernels::KernelError| e.to_string())
}

/// More threads than any machine has cores only cost.
fn parse_threads(text: &str) -> Result<usize, String> {
    whole(text, 1..=1024)
}

/// A draft tree is verified in one forward of the target.
fn parse_budget(text: &str) -> Result<usize, String> {
    whole(text, 1..=65_536)
}

/// Every row of a verified tree has logits over the whole vocabulary.
fn parse_tree_budget(text: &str) -> Result<usize, String> {
    whole(text, 0..=4096)
}

fn whole(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.parse::<usize>().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
}

fn parse_thinking(text: &str) -> Result<ThinkingMode, String> {
    match text {
        "on" => Ok(ThinkingMode::On),
        "off" => Ok(ThinkingMode::Off),
        _ => Err("expected `on` or `off`".into()),
    }
}

fn parse_device(text: &str) -> Result<DeviceKind, String> {
    text.parse().map_err(|e: draftsman_kernels::KernelError| e.to_string())
}

fn parse_dtype(text: &str) -> Result<WeightDtype, String> {
    text.parse().map_err(|e: draftsman_kernels::KernelError| e.to_string())
}

/// The target model of a command.
#[derive(Args, Clone)]
pub(crate) struct TargetArgs {
    /// Target model: a Hugging Face folder, a `.gguf` file, or `org/name[@revision]`.
    #[arg(long, short = 't', value_name = "MODEL")]
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) run: DeviceArgs,
    /// Tell the chat template whether the target shall think (`enable_thinking`). Default: what the template does untold.
    #[arg(long, value_name = "on|off", value_parser = parse_thinking)]
    pub(crate) thinking: Option<ThinkingMode>,
}

impl TargetArgs {
    /// As with no other flag.
    pub(crate) fn plain(target: PathBuf) -> Self {
        Self { target, run: DeviceArgs::cpu(), thinking: None }
    }
}

#[derive(Args)]
pub(crate) struct QuickstartArgs {
    /// Folder for everything it makes; a folder of an earlier quickstart is replaced.
    #[arg(long, short, default_value = "runs/quickstart")]
    pub(crate) out: PathBuf,
    /// A few seconds that show that it works and teach nothing.
    #[arg(long)]
    pub(crate) smoke: bool,
}

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// A model folder, its config.json alone, a `.gguf` file, a drafter folder, a checkpoint, or `org/name[@revision]`.
    pub(crate) path: PathBuf,
    /// List every tensor of a target with its shape.
    #[arg(long)]
    pub(crate) tensors: bool,
}

#[derive(Args)]
pub(crate) struct DataInspectArgs {
    /// JSONL file: chat records, answers of `data regenerate`, or `input_ids` with `loss_mask`.
    pub(crate) data: PathBuf,
    /// Model whose tokenizer and chat template are used.
    #[arg(long, short = 't', value_name = "MODEL")]
    pub(crate) target: PathBuf,
    /// Show this many records in full.
    #[arg(long, default_value_t = 1)]
    pub(crate) show: usize,
    /// Refuse records longer than this many tokens.
    #[arg(long)]
    pub(crate) max_length: Option<usize>,
    /// Refuse records that contain this token (the drafter's mask token).
    #[arg(long)]
    pub(crate) mask_token_id: Option<u32>,
}

#[derive(Args)]
pub(crate) struct RegenerateArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// JSONL file with `messages` ending in a user turn.
    #[arg(long)]
    pub(crate) prompts: PathBuf,
    /// Answers file to write or continue.
    #[arg(long, short)]
    pub(crate) out: PathBuf,
    /// Answer only the first N prompts.
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    /// Longest answer, in tokens.
    #[arg(long, default_value_t = 192)]
    pub(crate) max_new_tokens: usize,
    /// Answers written side by side.
    #[arg(long, default_value_t = 32)]
    pub(crate) rows: usize,
    /// Sampling temperature; 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Keep writing where an answer falls into a loop.
    #[arg(long)]
    pub(crate) keep_loops: bool,
}

#[derive(Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Recipe file (recipes/*.toml).
    #[arg(long, short)]
    pub(crate) recipe: PathBuf,
    /// Training data: JSONL of `data regenerate`, chat records, or ids with a loss mask.
    #[arg(long, short)]
    pub(crate) data: PathBuf,
    /// Run folder to create.
    #[arg(long, short)]
    pub(crate) out: PathBuf,
    /// Continue the run in this folder.
    #[arg(long, conflicts_with = "overwrite")]
    pub(crate) resume: bool,
    /// Replace the run in this folder.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// What the loss is divided by; the same as `train.normalise=…`.
    #[arg(long)]
    pub(crate) normalise: Option<Normalise>,
    /// Stop with a checkpoint after this many completed steps, although the recipe has more.
    #[arg(long)]
    pub(crate) stop_after: Option<usize>,
    /// Changes to the recipe: `section.key=value`.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

#[derive(Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Drafter folder, `none`, `ngram` or `ngram+FOLDER`.
    #[arg(long, short = 'd', default_value = "none")]
    pub(crate) drafter: String,
    #[command(flatten)]
    pub(crate) opening: OpeningArgs,
    /// The user's message.
    #[arg(required_unless_present = "prompt_ids")]
    pub(crate) prompt: Option<String>,
    /// JSON file with a list of token ids; needs no tokenizer.
    #[arg(long, conflicts_with = "prompt")]
    pub(crate) prompt_ids: Option<PathBuf>,
    /// Longest answer, in tokens.
    #[arg(long, default_value_t = 128)]
    pub(crate) max_new_tokens: usize,
    /// Token ids that end the answer, e.g. `5,7`. Default: the model's own.
    #[arg(long, value_delimiter = ',')]
    pub(crate) stop_ids: Option<Vec<u32>>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Nodes of the draft tree of every cycle, root excluded; 0 drafts chains. Lookup always drafts chains.
    #[arg(long, default_value_t = 0, value_parser = parse_tree_budget)]
    pub(crate) tree_budget: usize,
    #[command(flatten)]
    pub(crate) trees: TreeArgs,
}

/// How drafters are opened.
#[derive(Args, Clone, Default)]
pub(crate) struct OpeningArgs {
    /// Names of the drafters' tensors, where another trainer wrote them (docs/models.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) name_map: Option<PathBuf>,
    /// Also take a drafter that was trained for another target, or for another file of this one.
    #[arg(long)]
    pub(crate) other_target: bool,
}

/// How the target chooses its tokens. Drafts are always the drafter's best guesses.
#[derive(Args, Clone)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature of the target; 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Draw only the so many most probable tokens; 0 = all.
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Draw only the fewest most probable tokens that have this share of the probability; 1 = all.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    /// As without any flag.
    const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };

    pub(crate) fn options(&self, max_new_tokens: usize, stop_ids: &[u32]) -> GenerateOptions {
        let Self { temperature, top_k, top_p, seed } = *self;
        GenerateOptions { temperature, top_k, top_p, seed, ..GenerateOptions::greedy(max_new_tokens, stop_ids) }
    }
}

/// The shape of draft trees; none of it changes what comes out.
#[derive(Args, Clone)]
pub(crate) struct TreeArgs {
    /// Put the chain of first choices into every tree before anything else.
    #[arg(long)]
    pub(crate) tree_seeded: bool,
    /// Divides the drafter's logits where a tree is built: above 1 wider trees, below 1 deeper ones.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) draft_temperature: f32,
}

impl TreeArgs {
    /// As without any flag.
    const PLAIN: Self = Self { tree_seeded: false, draft_temperature: 1.0 };

    pub(crate) fn rule(&self, budget: usize) -> TreeRule {
        TreeRule { budget, seeded: self.tree_seeded, temperature: self.draft_temperature }
    }
}

#[derive(Args)]
pub(crate) struct TraceTargetArgs {
    /// Target model: a Hugging Face folder or a `.gguf` file.
    #[arg(long, visible_alias = "target")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) run: DeviceArgs,
    #[command(flatten)]
    pub(crate) files: TraceFiles,
    /// Prefix, block, rollback and continuation over a cache.
    #[arg(long)]
    pub(crate) cached: bool,
}

/// Input and output of a tensor trace.
#[derive(Args)]
pub(crate) struct TraceFiles {
    /// Input tensors (safetensors).
    #[arg(long)]
    pub(crate) input: PathBuf,
    /// Where the traced tensors go (safetensors).
    #[arg(long)]
    pub(crate) out: PathBuf,
}

#[derive(Args)]
pub(crate) struct TraceDrafterArgs {
    /// Drafter folder.
    #[arg(long)]
    pub(crate) drafter: PathBuf,
    /// Names of its tensors, where another trainer wrote them (docs/models.md).
    #[arg(long, value_name = "FILE")]
    pub(crate) name_map: Option<PathBuf>,
    /// Target that lends embedding and head; otherwise the input holds them.
    #[arg(long)]
    pub(crate) target: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: DeviceArgs,
    #[command(flatten)]
    pub(crate) files: TraceFiles,
}

#[derive(Args)]
pub(crate) struct TraceLossArgs {
    #[command(flatten)]
    pub(crate) drafter: TraceDrafterArgs,
    /// Loss: decayed cross-entropy.
    #[arg(long, default_value = "decay")]
    pub(crate) loss: Loss,
    /// Decay length of the slot weights. Default: by block size.
    #[arg(long)]
    pub(crate) gamma: Option<f64>,
    /// What a hole in the loss mask does to its block.
    #[arg(long, default_value = "cut")]
    pub(crate) holes: Holes,
    /// What the loss is divided by.
    #[arg(long, default_value = "weights")]
    pub(crate) normalise: Normalise,
}

/// `--loss`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Loss {
    /// Cross-entropy with exponentially decaying slot weights.
    Decay,
}

/// `--holes`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Holes {
    /// The first unsupervised label ends the block's supervised slots.
    Cut,
    /// An unsupervised label loses its own weight only.
    Skip,
}

/// `--normalise`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Normalise {
    /// The sum of the slot weights.
    Weights,
    /// The number of documents.
    Sequences,
}

impl Normalise {
    /// The word a recipe uses.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Sequences => "sequences",
        }
    }
}

#[derive(Args)]
pub(crate) struct TraceTreeArgs {
    /// safetensors file with `logits` or `log_probs` `[L, V]`.
    #[arg(long)]
    pub(crate) input: PathBuf,
    /// Nodes of the tree, root excluded.
    #[arg(long, value_parser = parse_budget)]
    pub(crate) budget: usize,
}

#[derive(Args)]
pub(crate) struct TraceAcceptanceArgs {
    /// safetensors file with `logits` `[N, L, V]`, `truth` `[N, L]`, `valid` `[N]`.
    #[arg(long)]
    pub(crate) input: PathBuf,
}
