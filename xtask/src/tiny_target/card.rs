//! Measures the exported model with the decoder that users run, and writes its card.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use burn::tensor::Device;
use draftsman_data::LoopRule;
use draftsman_decode::{Finish, GenerateOptions, generate};
use draftsman_kernels::WeightDtype;
use draftsman_models::{Target, open_target};
use sha2::{Digest, Sha256};

use super::checkpoint::Progress;
use super::corpus::{Chat, Corpus, Function, HEADS, MEASURED, REQUESTS, Sample, Split, TRAINING};
use super::export::{PROGRESS, logits, write};
use super::loss::losses;
use super::ngram::Ngram;
use super::recipe as r;
use super::tokenizer::{Encoded, Encoder};

const HEAD_COUNT: usize = 50;
const REQUEST_COUNT: usize = 240;
const MEASURED_COUNT: u64 = 400;
const MAX_NEW_TOKENS: usize = 160;

/// Gates of the card: at least, at least, at most.
const PARSE_SHARE: f64 = 0.5;
const RIGHT_SHARE: f64 = 0.6;
const LOOP_SHARE: f64 = 0.3;

/// Measures the model in `out` and writes `README.md` beside it. Fails after writing when a gate is missed.
pub(crate) fn measure_and_write(out: &Path) -> anyhow::Result<()> {
    let progress: Progress = serde_json::from_slice(&fs::read(out.join(PROGRESS))?)?;
    let model = Measured {
        target: open_target(out, &Device::flex(), WeightDtype::F32)?,
        encoder: Encoder::new(&fs::read_to_string(out.join("tokenizer.json"))?)?,
        corpus: Corpus::new(r::SEED),
    };
    let heads = model.heads()?;
    println!("{} of {} function heads continue to Python that parses", heads.parsed, heads.asked);
    let requests = model.requests()?;
    println!("{} of {} requests are answered right", requests.right(), requests.asked());
    let looping = (heads.loops + requests.loops) as f64 / (heads.asked + requests.asked()) as f64;
    println!("{:.1} % of the answers loop", 100.0 * looping);
    let bits = model.bits_per_byte(&progress)?;
    println!("bits per byte: {:.3}, of the 5-gram model {:.3}", bits.model, bits.ngram);
    write(&out.join("README.md"), card(out, &progress, &heads, &requests, looping, &bits)?.as_bytes())?;
    let parsed = heads.parsed as f64 / heads.asked as f64;
    let right = requests.right() as f64 / requests.asked() as f64;
    ensure!(parsed >= PARSE_SHARE, "only {:.0} % of the heads continue to Python that parses", 100.0 * parsed);
    ensure!(right >= RIGHT_SHARE, "only {:.0} % of the requests are answered right", 100.0 * right);
    ensure!(looping < LOOP_SHARE, "{:.0} % of the answers loop", 100.0 * looping);
    Ok(())
}

struct Measured {
    target: Box<dyn Target>,
    encoder: Encoder,
    corpus: Corpus,
}

struct Heads {
    asked: usize,
    parsed: usize,
    loops: usize,
    /// The first head and what was made of it.
    example: String,
}

#[derive(Default)]
struct Requests {
    /// Right and asked, by kind.
    kinds: BTreeMap<&'static str, (usize, usize)>,
    loops: usize,
    /// Requests and answers, one of each kind.
    examples: BTreeMap<&'static str, (Chat, String)>,
}

impl Requests {
    fn right(&self) -> usize {
        self.kinds.values().map(|(right, _)| right).sum()
    }

    fn asked(&self) -> usize {
        self.kinds.values().map(|(_, asked)| asked).sum()
    }
}

struct BitsPerByte {
    model: f64,
    ngram: f64,
    bytes: usize,
}

/// A greedy answer without its stop token.
struct Answer {
    text: String,
    stopped: bool,
    loops: bool,
}

impl Measured {
    fn answer(&self, prompt: &[u32]) -> anyhow::Result<Answer> {
        let options = GenerateOptions::greedy(MAX_NEW_TOKENS, &self.encoder.stop_ids());
        let generation = generate(self.target.as_ref(), None, prompt, &options)?;
        let ids = generation.output_ids();
        let stopped = generation.finish == Finish::Stop;
        let loops = LoopRule::default().loop_start(ids).is_some();
        let kept = if stopped { &ids[..ids.len() - 1] } else { ids };
        Ok(Answer { text: self.encoder.tokenizer.decode(kept, false)?, stopped, loops })
    }

    /// Heads of functions that were held out, each continued until the model stops.
    fn heads(&self) -> anyhow::Result<Heads> {
        let (mut seen, mut texts, mut stopped, mut loops) = (HashSet::new(), Vec::new(), Vec::new(), 0);
        for function in (0..).map(|index| self.corpus.function(HEADS, index, Split::HeldOut)) {
            let head = Function::head(&function);
            if !seen.insert(head.clone()) {
                continue;
            }
            let answer = self.answer(&self.encoder.tokenizer.encode(&head)?)?;
            texts.push(format!("{head}{}", answer.text));
            stopped.push(answer.stopped);
            loops += usize::from(answer.loops);
            if texts.len() == HEAD_COUNT {
                break;
            }
        }
        let parses = python_parses(&texts)?;
        let parsed = parses.iter().zip(&stopped).filter(|(parses, stopped)| **parses && **stopped).count();
        let example = texts.iter().max_by_key(|text| text.len().min(260)).cloned().unwrap_or_default();
        Ok(Heads { asked: texts.len(), parsed, loops, example })
    }

    /// Requests that were held out; right is what equals the one right answer, but for space around it.
    fn requests(&self) -> anyhow::Result<Requests> {
        let mut requests = Requests::default();
        let mut seen = HashSet::new();
        for chat in (0..).map(|index| self.corpus.chat(REQUESTS, index, Split::HeldOut)) {
            if !seen.insert(chat.request.clone()) {
                continue;
            }
            let answer = self.answer(&self.encoder.prompt(&chat.request)?)?;
            let (right, asked) = requests.kinds.entry(chat.kind).or_default();
            *right += usize::from(answer.stopped && answer.text.trim() == chat.answer.trim());
            *asked += 1;
            requests.loops += usize::from(answer.loops);
            requests.examples.entry(chat.kind).or_insert((chat, answer.text));
            if requests.asked() == REQUEST_COUNT {
                break;
            }
        }
        Ok(requests)
    }

    /// Over held-out functions (but for their first token) and held-out answers, stop tokens included in the bits.
    fn bits_per_byte(&self, progress: &Progress) -> anyhow::Result<BitsPerByte> {
        let mut ngram = Ngram::default();
        for index in 0..progress.next_sample {
            ngram.add(&self.encoder.encode(&self.corpus.sample(TRAINING, index, Split::Train))?.ids);
        }
        let (mut model_nats, mut ngram_nats, mut bytes) = (0.0, 0.0, 0);
        for index in 0..MEASURED_COUNT {
            let sample = self.corpus.sample(MEASURED, index, Split::HeldOut);
            let Encoded { ids, learnt_from } = self.encoder.encode(&sample)?;
            let rows = logits(self.target.as_ref(), &ids[..ids.len() - 1])?;
            let rows = rows.narrow(0, learnt_from - 1, ids.len() - learnt_from);
            model_nats += losses(rows, &ids[learnt_from..]).iter().sum::<f64>();
            ngram_nats += (learnt_from..ids.len()).map(|at| -ngram.probability(&ids, at).ln()).sum::<f64>();
            bytes += match &sample {
                Sample::Function(function) => {
                    function.text().len() + 1 - self.encoder.tokenizer.decode(&ids[..1], false)?.len()
                }
                Sample::Chat(chat) => chat.answer.len(),
            };
        }
        let bits = |nats: f64| nats / std::f64::consts::LN_2 / bytes as f64;
        Ok(BitsPerByte { model: bits(model_nats), ngram: bits(ngram_nats), bytes })
    }
}

/// Whether Python's own parser takes each text.
fn python_parses(texts: &[String]) -> anyhow::Result<Vec<bool>> {
    const PROGRAM: &str = "\
import ast, json, sys
def parses(text):
    try:
        ast.parse(text)
        return True
    except (SyntaxError, ValueError):
        return False
print(json.dumps([parses(text) for text in json.load(sys.stdin)]))";
    let mut python = Command::new("python3")
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run `python3`, whose parser judges the functions")?;
    let mut stdin = python.stdin.take().context("python3 has no input")?;
    stdin.write_all(serde_json::to_string(texts)?.as_bytes())?;
    drop(stdin);
    let output = python.wait_with_output()?;
    ensure!(output.status.success(), "python3 failed: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn card(
    out: &Path,
    progress: &Progress,
    heads: &Heads,
    requests: &Requests,
    looping: f64,
    bits: &BitsPerByte,
) -> anyhow::Result<String> {
    let parameters: usize = super::model::initial(r::SEED).iter().map(|p| p.values.len()).sum();
    let full = (0..r::LAYERS).filter(|&layer| r::is_full(layer)).count();
    let mut card = String::new();
    write!(
        card,
        "# The tiny target\n\n\
A language model of {:.2} million parameters for short Python functions and tiny coding requests. It is embedded in \
`draftsman` so that its main job, training and measuring a drafter, runs without a download. `cargo xtask tiny-target` \
makes it from nothing and writes this card; `cargo xtask tiny-target --card` measures it again.\n\n\
**What it is.** A real, trained model of the hybrid `qwen3_5` architecture: {} layers, every third with gated full \
attention ({full} of them), the others gated delta layers with {} value heads to {} key heads; hidden size {}, MLP {}, \
vocabulary {} with a byte-level BPE tokenizer of its own, tied head, weights in f16. Chats are ChatML; an answer ends \
with `<|im_end|>`, a file with `<|endoftext|>`. No text has `<|mask|>`: it is the spare row for a block drafter's mask.\n\n\
**What it isn't.** An assistant. It knows a few hundred kinds of functions and eleven kinds of requests, all in the \
wording of its templates, and nothing else; other requests get an answer that looks alike and is wrong. Acceptance and \
speed measured on it say that the machinery works, not what a drafter will reach on a large model.\n\n\
## Measured\n\n\
Greedy decoding by `draftsman-decode`, f32. Held out is a sixteenth of all keys: combinations of condition, change and \
summary, entries of the tables together with their parameter names, sums, lists of numbers, and one- and two-line \
requests as they are worded. Nothing with such a key was trained on. So a held-out function is new as a whole, while its \
parts are known; some have a known entry with other names.\n\n\
| | measured | gate |\n|---|---|---|\n\
| held-out function heads that continue, and stop, to text that Python's `ast.parse` accepts | {} of {} | at least half |\n\
| held-out requests answered right (equal to the one right answer) | {} of {} ({:.0} %) | at least 60 % |\n\
| answers that loop (`LoopRule`) | {:.1} % | below 30 % |\n\
| bits per byte on {} bytes of held-out text | {:.3} | |\n\
| the same of a 5-gram model over the same tokens, trained on the same text (Witten-Bell) | {:.3} | |\n\n\
| kind of request | right | asked |\n|---|---|---|\n",
        parameters as f64 / 1e6,
        r::LAYERS,
        r::DELTA_VALUE_HEADS,
        r::DELTA_KEY_HEADS,
        r::HIDDEN,
        r::INTERMEDIATE,
        r::VOCAB,
        heads.parsed,
        heads.asked,
        requests.right(),
        requests.asked(),
        100.0 * requests.right() as f64 / requests.asked() as f64,
        100.0 * looping,
        bits.bytes,
        bits.model,
        bits.ngram,
    )?;
    for (kind, (right, asked)) in &requests.kinds {
        writeln!(card, "| {kind} | {right} | {asked} |")?;
    }
    write!(
        card,
        "\n## How it was made\n\n\
The text is written by the program itself (`xtask/src/tiny_target/corpus`, `xtask/corpus`), from templates and word \
lists made for this project, and so is under the repository's licence, MIT OR Apache-2.0, as the weights are. Seed {}; \
{:.1} million tokens in {} steps, {:.1} million of them learnt (functions whole, chats their answers), in {:.0} minutes \
on 2 shared CPU cores. AdamW, learning rate 3e-3 with a warmup of 100 steps and a linear tail of {}. The losses of the \
first {} steps are in `loss-first-100.txt`, with all bits; `cargo xtask tiny-target --check` trains them again and \
compares (they depend on the vector instructions of the CPU: these are {}).\n\n\
`prompts-train.jsonl` and `prompts-held-out.jsonl` hold requests of the two splits, without answers.\n\n\
## Examples\n\nA held-out head, continued:\n\n```python\n{}\n```\n",
        r::SEED,
        progress.tokens as f64 / 1e6,
        progress.step,
        progress.learnt_tokens as f64 / 1e6,
        progress.seconds / 60.0,
        r::TAIL_STEPS,
        r::COMMITTED_LOSSES,
        simd_level(),
        heads.example.trim_end(),
    )?;
    for (chat, answer) in requests.examples.values() {
        let verdict = if answer.trim() == chat.answer.trim() { "right" } else { "wrong" };
        write!(
            card,
            "\n{} ({verdict}):\n\n```text\n> {}\n\n{answer}\n```\n",
            chat.kind,
            chat.request.replace('\n', "\n> ")
        )?;
    }
    write!(card, "\n## SHA-256\n\n```text\n")?;
    let mut files: Vec<_> = fs::read_dir(out)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.sort();
    for path in files.iter().filter(|path| path.is_file() && !path.ends_with("README.md")) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hash = Sha256::digest(fs::read(path)?);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(card, "{hash}  {name}")?;
    }
    card += "```\n";
    Ok(card)
}

fn simd_level() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "of AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "of AVX2";
        }
    }
    "of the portable form"
}
