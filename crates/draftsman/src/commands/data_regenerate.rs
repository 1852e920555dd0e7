//! `draftsman data regenerate`: the target answers the training prompts itself.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::bail;
use draftsman_data::{
    Answer, AnswerSettings, AnswerStore, Finish, LoopDetector, LoopRule, Message, Prompt, read_prompts,
};
use draftsman_decode::{GenerateOptions, LockstepHooks, LockstepStats, lockstep};
use draftsman_models::weight_sha256;
use serde_json::json;

use crate::Outcome;
use crate::args::RegenerateArgs;
use crate::interrupt;
use crate::model::Model;
use crate::output;
use crate::printer::Printer;

/// Seconds between two progress lines.
const PROGRESS_EVERY_S: f64 = 10.0;

pub(crate) fn run(args: &RegenerateArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    output::check(&args.out, [args.prompts.as_path(), &args.target.target])?;
    let mut prompts = read_prompts(&args.prompts)?;
    let available = prompts.len();
    prompts.truncate(args.limit.unwrap_or(available));
    if prompts.is_empty() {
        bail!("`{}` gives no prompt", args.prompts.display());
    }
    let model = Model::open(&args.target)?;
    let target = model.target.as_ref();
    let text = model.text()?;
    let encoded = prompts
        .iter()
        .map(|prompt| Ok((prompt, text.prompt_ids(&prompt.messages, prompt.tools.as_ref())?)))
        .collect::<anyhow::Result<Vec<_>>>()?;

    let loop_rule = (!args.keep_loops).then(LoopRule::default);
    let options = GenerateOptions {
        temperature: args.temperature,
        seed: args.seed,
        ..GenerateOptions::greedy(args.max_new_tokens, &model.stop_ids())
    };
    let settings = AnswerSettings {
        model: model.name(),
        model_sha256: weight_sha256(target.embedding()),
        tokenizer_sha256: text.tokenizer().sha256().to_owned(),
        chat_template_sha256: text.template().sha256(),
        dtype: args.target.run.dtype.to_string(),
        temperature: args.temperature,
        seed: args.seed,
        max_new_tokens: args.max_new_tokens,
        stop_ids: options.stop_ids.clone(),
        loop_rule,
        further: model.thinking().map(|mode| ("thinking".to_owned(), json!(mode))).into_iter().collect(),
    };
    let mut store = AnswerStore::open(&args.out, &settings)?;
    if store.dropped_bytes() > 0 {
        printer
            .note(format!("dropped a torn last line of {} bytes: its answer is written again", store.dropped_bytes()));
    }
    let missing = store.missing(&encoded)?;
    printer.note(format!(
        "{} of {available} prompts, {} answered already, {} to go",
        prompts.len(),
        prompts.len() - missing.len(),
        missing.len()
    ));

    let interrupted = interrupt::flag()?;
    let before = store.summary();
    let mut hooks = Writer {
        store: &mut store,
        encoded: &encoded,
        model: &model,
        loop_rule,
        detectors: Vec::new(),
        interrupted: interrupted.clone(),
        to_go: missing.len(),
        printed: Instant::now(),
        printer,
        error: None,
    };
    hooks.detectors.resize_with(encoded.len(), || None);
    let stats = lockstep(target, missing, args.rows, &options, &mut hooks)?;
    if let Some(error) = hooks.error {
        return Err(error);
    }
    let seconds = stats.seconds.max(1e-9);
    printer.note(format!(
        "{} answers, {} tokens in {seconds:.1} s: {:.0} tokens/s",
        stats.finished,
        stats.produced_tokens,
        stats.produced_tokens as f64 / seconds
    ));
    if stats.interrupted {
        printer.note(format!(
            "interrupted; `{}` keeps every finished answer, the same command continues",
            args.out.display()
        ));
        return Ok(Outcome::Interrupted(interrupt::SIGINT));
    }
    let summary = store.finish()?;
    printer.line(format!(
        "`{}`: {} answers ({} new), {} answer tokens; {} ended by themselves, {} at the limit, {} cut where a loop began ({:.0} %)",
        args.out.display(),
        summary.answers,
        summary.answers - before.answers,
        summary.response_tokens,
        summary.stopped,
        summary.at_limit,
        summary.looped,
        100.0 * summary.loop_share()
    ));
    printer.document(&json!({
        "answers": summary.answers,
        "response_tokens": summary.response_tokens,
        "stopped": summary.stopped,
        "at_limit": summary.at_limit,
        "looped": summary.looped,
        "loop_share": summary.loop_share(),
        "produced_tokens": stats.produced_tokens,
        "seconds": stats.seconds,
    }))?;
    Ok(Outcome::Done)
}

/// Stores each finished answer at once, so that a kill loses only answers under way.
struct Writer<'a> {
    store: &'a mut AnswerStore,
    encoded: &'a [(&'a Prompt, Vec<u32>)],
    model: &'a Model,
    loop_rule: Option<LoopRule>,
    /// One per running answer.
    detectors: Vec<Option<LoopDetector>>,
    interrupted: Arc<AtomicBool>,
    to_go: usize,
    printed: Instant,
    printer: &'a Printer,
    error: Option<anyhow::Error>,
}

impl Writer<'_> {
    fn store(&mut self, answer: draftsman_decode::Answer) -> anyhow::Result<()> {
        let (prompt, prompt_ids) = &self.encoded[answer.index];
        let text = self.model.text()?.tokenizer().decode(&answer.output_ids, true)?;
        let mut messages = prompt.messages.clone();
        messages.push(Message::new("assistant", text));
        self.store.append(Answer {
            index: answer.index,
            id: prompt.id.clone(),
            source: prompt.source.clone(),
            messages,
            finish: match answer.finish {
                draftsman_decode::Finish::Stop => Finish::Stop,
                draftsman_decode::Finish::Length => Finish::Length,
                draftsman_decode::Finish::Early => Finish::Loop,
            },
            prompt_ids: prompt_ids.clone(),
            response_ids: answer.output_ids,
        })?;
        Ok(())
    }
}

impl LockstepHooks for Writer<'_> {
    fn early_end(&mut self, index: usize, produced: &[u32]) -> Option<usize> {
        let rule = self.loop_rule?;
        let detector = self.detectors[index].get_or_insert_with(|| LoopDetector::new(rule));
        detector.push(*produced.last()?)
    }

    fn finished(&mut self, answer: draftsman_decode::Answer) -> ControlFlow<()> {
        self.detectors[answer.index] = None;
        if let Err(error) = self.store(answer) {
            self.error = Some(error);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn stepped(&mut self, stats: &LockstepStats) -> ControlFlow<()> {
        if self.printed.elapsed().as_secs_f64() >= PROGRESS_EVERY_S {
            self.printed = Instant::now();
            let share = stats.finished as f64 / self.to_go.max(1) as f64;
            let left = if share > 0.0 { stats.seconds / share - stats.seconds } else { f64::NAN };
            self.printer.note(format!(
                "{}/{} answers, {:.0} tokens/s, about {left:.0} s left",
                stats.finished,
                self.to_go,
                stats.produced_tokens as f64 / stats.seconds.max(1e-9)
            ));
        }
        if self.interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
