//! `draftsman train`.

use std::path::{Path, PathBuf};

use draftsman_contract::{LabelSource, default_gamma};
use draftsman_models::target_identity;
use draftsman_train::{
    Ending, LogLine, Progress, Provenance, Recipe, RunFolder, RunMode, RunStart, SampleSet, TrainJob, ValidationLine,
    train,
};
use serde_json::json;

use crate::Outcome;
use crate::args::TrainArgs;
use crate::interrupt;
use crate::live_check::{self, HeldOut};
use crate::model::Model;
use crate::printer::Printer;
use crate::provenance::feature_origin;

pub(crate) fn run(args: &TrainArgs, printer: &Printer) -> anyhow::Result<Outcome> {
    // Cheap checks first: a typo in the recipe should not wait for a model to load.
    let recipe = Recipe::load(&args.recipe, &overrides(args))?;
    let mode = match (args.resume, args.overwrite) {
        (true, _) => RunMode::Resume,
        (_, true) => RunMode::Overwrite,
        _ => RunMode::New,
    };
    RunFolder::check(&args.out, mode)?;

    let model = Model::open_for_data(&args.target)?;
    let target = model.target.as_ref();
    let recipe = recipe.resolve(target.spec(), &args.recipe.display().to_string())?;
    let documents = model.training_documents(
        &args.data,
        recipe.data.max_length.is_none().then_some(target.spec().max_positions),
        Some(recipe.drafter.mask_token_id),
    )?;
    if documents.loops_cut > 0 {
        printer.note(format!(
            "{} answers cut where a loop began ({} tokens)",
            documents.loops_cut, documents.loop_tokens_cut
        ));
    }
    let samples = SampleSet::prepare(&recipe, target.spec(), documents.samples)?;

    let gamma = recipe.train.gamma.unwrap_or_else(|| default_gamma(recipe.drafter.block_size));
    let mut validation = live_check::draw(&recipe, &samples.validation, gamma, recipe.train.holes);
    let taps = recipe.drafter.target_layer_ids.clone().unwrap_or_default();
    let checked = validation.anchors() > 0 && recipe.train.validate_every > 0;
    if checked {
        let walk = match mode {
            RunMode::Resume => live_check::saved_walk(&args.out, printer)?,
            RunMode::New | RunMode::Overwrite => {
                live_check::answer_walk(&recipe, &samples.validation, target, &model.stop_ids(), printer)?
            }
        };
        if let Some(walk) = walk {
            validation = validation.with_walk(walk);
        }
    }
    let mut check = checked.then(|| HeldOut::new(target, &validation, &taps)).transpose()?;

    let provenance = Provenance {
        labels: if documents.answers_of_target { LabelSource::TargetToken } else { LabelSource::DataToken },
        features: feature_origin(target, &args.target.run),
        target: target_identity(target, Some(model.name())),
        tokenizer_sha256: model.tokenizer_sha256(),
        chat_template_sha256: model.chat_template_sha256(),
        thinking: model.thinking(),
    };
    let job = TrainJob {
        recipe,
        target,
        provenance,
        samples: &samples,
        run: args.out.clone(),
        mode,
        stop_after: args.stop_after,
    };
    let interrupt = interrupt::flag()?;
    let mut console = Console { printer };
    let check = check.as_mut().map(|check| check as &mut dyn draftsman_train::LiveCheck);
    let outcome = train(&job, &mut console, check, &interrupt)?;

    printer.line(format!("{} steps, last checkpoint `{}`", outcome.step, outcome.checkpoint.display()));
    if let Some(best) = &outcome.best {
        printer.line(format!(
            "best checkpoint by {}: {:.4} at step {}, `{}`",
            best.metric,
            best.value,
            best.step,
            best.folder.display()
        ));
    }
    printer.document(&json!({
        "step": outcome.step,
        "checkpoint": outcome.checkpoint,
        "best": outcome.best.as_ref().map(|best| json!({
            "step": best.step, "metric": best.metric, "value": best.value, "folder": best.folder,
        })),
        "elapsed_s": outcome.elapsed_seconds,
        "interrupted": outcome.ending == Ending::Interrupted,
    }))?;
    Ok(match outcome.ending {
        Ending::Interrupted => Outcome::Interrupted(interrupt::SIGINT),
        Ending::Finished | Ending::StoppedAfter => Outcome::Done,
    })
}

/// The recipe overrides, flags first so that an explicit `key=value` wins.
fn overrides(args: &TrainArgs) -> Vec<String> {
    let normalise = args.normalise.map(|n| format!("train.normalise={}", n.word()));
    normalise.into_iter().chain(args.overrides.iter().cloned()).collect()
}

/// The training log on stderr.
struct Console<'a> {
    printer: &'a Printer,
}

impl Progress for Console<'_> {
    fn started(&mut self, start: &RunStart) {
        self.printer.note(start.to_string());
    }

    fn logged(&mut self, line: &LogLine) {
        self.printer.note(line.to_string());
    }

    fn validated(&mut self, line: &ValidationLine) {
        self.printer.note(line.to_string());
    }

    fn saved(&mut self, step: usize, folder: &PathBuf) {
        let folder: &Path = folder;
        self.printer.note(format!("saved step {step} in `{}`", folder.display()));
    }
}
