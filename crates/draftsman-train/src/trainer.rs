//! The training loop.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use draftsman_contract::LayoutRules;
use draftsman_models::{Dflash, DrafterConfig, Init, ModelError, check_pair, init, load_drafter};

use crate::anchors::{Cursor, draw_anchors};
use crate::checkpoint::{self, Best, Content, State};
use crate::error::TrainError;
use crate::features::FeatureStore;
use crate::gradients::Gradients;
use crate::job::{BestCheckpoint, Ending, TrainJob, TrainOutcome};
use crate::loss::pack_loss;
use crate::metrics::{Metrics, resident_bytes};
use crate::optim::{AdamW, Update, clip_factor, parallel_copy};
use crate::pack::{Pack, PackedDocument};
use crate::progress::{LiveCheck, LogLine, Progress, RunStart, ValidationLine};
use crate::recipe::{Recipe, Start};
use crate::resume;
use crate::run_folder::{RunFolder, RunMode};
use crate::window::{Exact, Window, denominator};

/// Tokens on which `init = "target"` measures the scale of queries and keys.
const INIT_SAMPLE_TOKENS: usize = 512;

/// Trains a drafter as `job` says, from the start or from the newest checkpoint of the run folder.
///
/// Nothing is written before everything that can be checked has been. When `interrupt` becomes true the run saves a
/// checkpoint after the update in progress and returns.
pub fn train(
    job: &TrainJob<'_>,
    progress: &mut dyn Progress,
    check: Option<&mut dyn LiveCheck>,
    interrupt: &AtomicBool,
) -> Result<TrainOutcome, TrainError> {
    let mut trainer = Trainer::start(job, check.as_deref().map(LiveCheck::saved))?;
    progress.started(&trainer.run_start());
    trainer.run(progress, check, interrupt)
}

/// A parameter on the host: the optimizer works here, the drafter's tensors are made from it.
struct Master {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

struct Trainer<'a> {
    job: &'a TrainJob<'a>,
    recipe_toml: String,
    validation: Option<serde_json::Value>,
    folder: RunFolder,
    metrics: Metrics,
    drafter: Dflash,
    masters: Vec<Master>,
    optimizer: AdamW,
    features: FeatureStore,
    rules: LayoutRules,
    /// Eligible anchors by training document.
    eligible: Vec<Vec<usize>>,
    cursor: Cursor,
    step: usize,
    window: Window,
    best: Option<Best>,
    /// Seconds of the parts of the run before this one.
    earlier_seconds: f64,
    started: Instant,
    /// Step and folder of the newest checkpoint.
    saved: Option<(usize, PathBuf)>,
    /// Newer checkpoints that were passed over, and why.
    damaged: Vec<String>,
    last_update: LastUpdate,
}

#[derive(Clone, Copy, Default)]
struct LastUpdate {
    gradient_norm: f64,
    learning_rate: f64,
}

/// Where a run begins.
struct Beginning {
    drafter: Dflash,
    optimizer: AdamW,
    state: Option<State>,
    saved: Option<(usize, PathBuf)>,
    damaged: Vec<String>,
}

impl<'a> Trainer<'a> {
    fn start(job: &'a TrainJob<'a>, validation: Option<serde_json::Value>) -> Result<Self, TrainError> {
        RunFolder::check(&job.run, job.mode)?;
        let spec = job.target.spec();
        let recipe = &job.recipe;
        let config = recipe.drafter_config(spec, &job.provenance);
        check_pair(&config, spec)
            .map_err(|problems| ModelError::InvalidInput(format!("drafter and target do not fit: {problems}")))?;
        if job.samples.train.is_empty() {
            return Err(TrainError::Data("there is no document to train on".into()));
        }
        let recipe_toml = recipe.to_toml()?;
        let (folder, beginning) = match job.mode {
            RunMode::Resume => {
                let folder = RunFolder::open(&job.run, job.mode)?;
                let beginning = resumed(job, &config, &folder, validation.as_ref())?;
                (folder, beginning)
            }
            RunMode::New | RunMode::Overwrite => {
                let beginning = fresh(job, &config)?;
                (RunFolder::open(&job.run, job.mode)?, beginning)
            }
        };
        checkpoint::sweep(&folder.checkpoints())?;
        folder.write_recipe(&recipe_toml)?;
        let Beginning { drafter, optimizer, state, saved, damaged } = beginning;
        let step = state.as_ref().map_or(0, |state| state.step);
        let consumed = state.as_ref().map_or(0, |state| state.documents_consumed);
        let masters = drafter
            .named_tensors()
            .into_iter()
            .map(|tensor| Master { name: tensor.name, shape: tensor.shape, values: tensor.values })
            .collect();
        let taps = &config.contract.target_layer_ids;
        let documents = job.samples.train.len();
        Ok(Self {
            job,
            recipe_toml,
            validation,
            metrics: Metrics::open(&folder.metrics(), step)?,
            folder,
            drafter,
            masters,
            optimizer,
            features: FeatureStore::new(taps, spec.hidden_size, documents, recipe.features.memory_gib),
            rules: recipe.layout_rules(&config.contract),
            eligible: job.samples.train.iter().map(|sample| sample.eligible_anchors()).collect(),
            cursor: Cursor::new(recipe.train.seed, documents, consumed),
            step,
            window: state.as_ref().map(|state| state.window.clone()).unwrap_or_default(),
            best: state.as_ref().and_then(|state| state.best.clone()),
            earlier_seconds: state.as_ref().map_or(0.0, |state| state.elapsed_seconds),
            started: Instant::now(),
            saved,
            damaged,
            last_update: LastUpdate::default(),
        })
    }

    fn run_start(&self) -> RunStart {
        RunStart {
            step: self.step,
            damaged: self.damaged.clone(),
            steps: self.recipe().train.steps,
            samples: self.job.samples.report.clone(),
            validation_documents: self.job.samples.validation.len(),
            train_documents: self.job.samples.train.len(),
            features: self.features.estimate(&self.job.samples.train),
            parameters: self.masters.iter().map(|master| master.values.len()).sum(),
        }
    }

    fn run(
        &mut self,
        progress: &mut dyn Progress,
        mut check: Option<&mut dyn LiveCheck>,
        interrupt: &AtomicBool,
    ) -> Result<TrainOutcome, TrainError> {
        let train = &self.job.recipe.train;
        if self.saved.is_none() {
            // A first checkpoint at step 0: a run that is killed early can be resumed, and the untrained drafter is measured.
            self.validate(progress, &mut check)?;
            self.save(progress)?;
        }
        if self.job.target.is_streamed() {
            self.features.fill(self.job.target, &self.job.samples.train)?;
        }
        let ending = loop {
            if self.step >= train.steps {
                break Ending::Finished;
            }
            if interrupt.load(Ordering::Relaxed) {
                break Ending::Interrupted;
            }
            if self.job.stop_after.is_some_and(|stop| self.step >= stop) {
                break Ending::StoppedAfter;
            }
            self.update()?;
            let last = self.step == train.steps;
            let due = |every: usize| every > 0 && self.step.is_multiple_of(every);
            let (log, validate, save) = (due(train.log_every), due(train.validate_every), due(train.checkpoint_every));
            if log || last {
                self.log(progress)?;
            }
            let is_best = train.validate_every > 0 && (validate || last) && self.validate(progress, &mut check)?;
            if save || last || is_best {
                self.save(progress)?;
            }
        };
        if self.saved.as_ref().is_none_or(|(step, _)| *step != self.step) {
            self.save(progress)?;
        }
        let checkpoints = self.folder.checkpoints();
        let checkpoint =
            self.saved.clone().map_or_else(|| checkpoint::folder(&checkpoints, self.step), |(_, folder)| folder);
        Ok(TrainOutcome {
            ending,
            step: self.step,
            checkpoint,
            best: self.best.as_ref().map(|best| BestCheckpoint {
                step: best.step,
                metric: best.metric.clone(),
                value: best.exact.0,
                folder: checkpoint::folder(&checkpoints, best.step),
            }),
            elapsed_seconds: self.elapsed(),
        })
    }

    fn recipe(&self) -> &'a Recipe {
        &self.job.recipe
    }

    fn elapsed(&self) -> f64 {
        self.earlier_seconds + self.started.elapsed().as_secs_f64()
    }

    /// One optimizer update: numerators and weights are summed over the whole accumulation window before anything is divided.
    fn update(&mut self) -> Result<(), TrainError> {
        let started = Instant::now();
        let train = &self.job.recipe.train;
        let target = self.job.target;
        let mut gradients = Gradients::default();
        let (mut weight_sum, mut documents, mut numerator) = (0.0, 0, 0.0);
        for _ in 0..train.accumulation {
            let pack = self.next_pack()?;
            let loss = pack_loss(&self.drafter, target.embedding(), target.head(), &pack)?;
            let value = f64::from(loss.numerator.clone().into_scalar::<f32>());
            let backward = loss.numerator.backward();
            gradients.add(&self.drafter, backward)?;
            self.window.add(&loss, value);
            numerator += value;
            weight_sum += loss.weight_sum;
            documents += loss.documents as u64;
        }
        let whole = denominator(train.normalise, weight_sum, documents);
        let gradient_norm = gradients.norm() / whole;
        for (what, value) in [("the loss", numerator / whole), ("the gradient norm", gradient_norm)] {
            if !value.is_finite() {
                return Err(TrainError::NotFinite { step: self.step + 1, what, value });
            }
        }
        let learning_rate = self.job.recipe.schedule().at(self.step);
        let scale = clip_factor(gradient_norm, train.clip_norm) / whole;
        self.apply(&gradients, Update { gradient_scale: scale as f32, learning_rate });
        self.step += 1;
        self.last_update = LastUpdate { gradient_norm, learning_rate };
        self.window.updates += 1;
        self.window.seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// The next documents with their anchors and features.
    fn next_pack(&mut self) -> Result<Pack, TrainError> {
        let train = &self.job.recipe.train;
        let samples = &self.job.samples.train;
        let turns: Vec<_> = (0..train.sequences_per_step).map(|_| self.cursor.advance()).collect();
        let wanted: Vec<usize> = turns.iter().map(|turn| turn.document).collect();
        let features = self.features.get(self.job.target, samples, &wanted)?;
        let anchors: Vec<Vec<usize>> = turns
            .iter()
            .map(|turn| draw_anchors(train.seed, *turn, &self.eligible[turn.document], train.anchors_per_sequence))
            .collect();
        let documents: Vec<PackedDocument<'_>> = turns
            .iter()
            .zip(&features)
            .zip(&anchors)
            .map(|((turn, features), anchors)| {
                let sample = &samples[turn.document];
                PackedDocument { ids: &sample.ids, loss_mask: &sample.loss_mask, anchors, features }
            })
            .collect();
        self.window.tokens += documents.iter().map(|document| document.ids.len() as u64).sum::<u64>();
        let mask = self.job.recipe.drafter.mask_token_id;
        Ok(Pack::new(&self.rules, mask, self.features.width(), &documents, &self.drafter.device())?)
    }

    fn apply(&mut self, gradients: &Gradients, update: Update) {
        self.optimizer.begin_update();
        for master in &mut self.masters {
            // A tensor that the loss does not reach has no gradient: it stays, without decay.
            if let Some(gradient) = gradients.get(&master.name) {
                self.optimizer.apply(&master.name, &master.shape, &mut master.values, gradient, update);
            }
        }
        let device = self.job.target.device();
        // `Dflash::parameters` and `map_parameters` share one order, which the masters were made in.
        let mut masters = self.masters.iter();
        let drafter = self.drafter.clone();
        self.drafter = drafter.map_parameters(|_, old| match masters.next() {
            Some(master) => old.with_values(parallel_copy(&master.values), device),
            None => old,
        });
    }

    fn log(&mut self, progress: &mut dyn Progress) -> Result<(), TrainError> {
        let train = &self.job.recipe.train;
        let window = std::mem::take(&mut self.window);
        let (chain, ddtree8, blocks) = window.accepted();
        let step_seconds = window.seconds / window.updates.max(1) as f64;
        let line = LogLine {
            step: self.step,
            steps: train.steps,
            epoch: self.cursor.epoch(),
            loss: window.loss(train.normalise),
            slot_hits: window.slot_hits(),
            chain,
            ddtree8,
            blocks,
            gradient_norm: self.last_update.gradient_norm,
            learning_rate: self.last_update.learning_rate,
            tokens_per_second: window.tokens as f64 / window.seconds,
            step_seconds,
            rss_bytes: resident_bytes(),
            elapsed_seconds: self.elapsed(),
            eta_seconds: step_seconds * train.steps.saturating_sub(self.step) as f64,
        };
        self.metrics.log(&line)?;
        progress.logged(&line);
        Ok(())
    }

    /// Runs the live check; true when its number is the best so far.
    fn validate(
        &mut self,
        progress: &mut dyn Progress,
        check: &mut Option<&mut dyn LiveCheck>,
    ) -> Result<bool, TrainError> {
        let Some(check) = check else { return Ok(false) };
        if self.job.recipe.train.validate_every == 0 {
            return Ok(false);
        }
        let started = Instant::now();
        let numbers = check
            .check(self.step, &self.drafter.inference(), self.job.target)
            .map_err(|error| TrainError::Check { step: self.step, message: error.to_string() })?;
        let (metric, better) = check.chooses_best();
        let value =
            numbers.iter().find(|(name, _)| *name == metric).map(|(_, value)| *value).filter(|value| value.is_finite());
        let is_best = value.is_some_and(|value| self.best.as_ref().is_none_or(|best| best.beaten_by(value, better)));
        if let Some(value) = value.filter(|_| is_best) {
            self.best = Some(Best { step: self.step, metric, value, exact: Exact(value) });
        }
        let line = ValidationLine { step: self.step, numbers, best: is_best, seconds: started.elapsed().as_secs_f64() };
        self.metrics.validation(&line)?;
        progress.validated(&line);
        Ok(is_best)
    }

    fn save(&mut self, progress: &mut dyn Progress) -> Result<(), TrainError> {
        let state = State {
            version: checkpoint::VERSION,
            step: self.step,
            epoch: self.cursor.epoch(),
            position: self.cursor.position(),
            documents_consumed: self.cursor.consumed(),
            seed: self.recipe().train.seed,
            data_sha256: self.job.samples.sha256.clone(),
            target: self.job.provenance.target.clone(),
            elapsed_seconds: self.elapsed(),
            window: self.window.clone(),
            best: self.best.clone(),
        };
        let checkpoints = self.folder.checkpoints();
        let content = Content {
            drafter: &self.drafter,
            moments: self.optimizer.moments(),
            recipe_toml: &self.recipe_toml,
            validation: self.validation.as_ref(),
            state: &state,
        };
        let folder = checkpoint::save(&checkpoints, &content)?;
        checkpoint::prune(
            &checkpoints,
            self.recipe().train.keep_checkpoints,
            self.best.as_ref().map(|best| best.step),
        )?;
        progress.saved(self.step, &folder);
        self.saved = Some((self.step, folder));
        Ok(())
    }
}

/// A new drafter.
fn fresh(job: &TrainJob<'_>, config: &DrafterConfig) -> Result<Beginning, TrainError> {
    let mut sample: Vec<&[u32]> = Vec::new();
    let mut tokens = 0;
    for document in &job.samples.train {
        if tokens >= INIT_SAMPLE_TOKENS {
            break;
        }
        let ids = &document.ids[..document.ids.len().min(INIT_SAMPLE_TOKENS - tokens)];
        tokens += ids.len();
        sample.push(ids);
    }
    let how = match job.recipe.drafter.init {
        Start::Target => Init::Target { sample: &sample },
        Start::Random => Init::Random,
    };
    let drafter = init(config, job.target, how, job.recipe.train.seed, job.target.device())?.trainable();
    Ok(Beginning { drafter, optimizer: AdamW::new(job.recipe.adamw()), state: None, saved: None, damaged: Vec::new() })
}

/// The newest complete checkpoint of the run, if it belongs to this job.
fn resumed(
    job: &TrainJob<'_>,
    config: &DrafterConfig,
    folder: &RunFolder,
    validation: Option<&serde_json::Value>,
) -> Result<Beginning, TrainError> {
    let checkpoints = folder.checkpoints();
    let (newest, broken) = checkpoint::newest(&checkpoints)?;
    let Some(newest) = newest else {
        let reasons: Vec<String> = broken.iter().map(|error| format!("\n  - {error}")).collect();
        return Err(TrainError::RunFolder {
            path: folder.path().to_path_buf(),
            problem: format!(
                "has no complete checkpoint to resume from (hint: --overwrite starts anew){}",
                reasons.concat()
            ),
        });
    };
    let loaded = checkpoint::load(&newest)?;
    let drafter = load_drafter(&newest, job.target.device())?;
    resume::check(&newest, &loaded, &drafter, &job.recipe, config, job.samples, validation)?;
    checkpoint::forget_after(&checkpoints, loaded.state.step)?;
    let damaged = broken.iter().map(ToString::to_string).collect();
    let optimizer = AdamW::with_state(job.recipe.adamw(), loaded.state.step as u64, loaded.moments);
    let saved = Some((loaded.state.step, newest));
    Ok(Beginning { drafter: drafter.trainable(), optimizer, state: Some(loaded.state), saved, damaged })
}
