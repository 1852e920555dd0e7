//! The training loop.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use draftsman_train::{Update, clip_factor, global_norm};

use super::batch::Batch;
use super::checkpoint::State;
use super::corpus::{Corpus, Split, TRAINING};
use super::loss::cross_entropy;
use super::model::Model;
use super::recipe::{BATCH_TOKENS, CLIP, COMMITTED_LOSSES, LOG_EVERY, MAX_DOCUMENT, SAVE_EVERY, SEED, STEPS, schedule};
use super::tokenizer::{self, Encoder};

const LOSSES: &str = "loss-first-100.txt";

/// Trains to the end, going on from the newest checkpoint in `work`.
pub(crate) fn train(work: &Path, out: &Path, stop_after: Option<usize>) -> anyhow::Result<()> {
    fs::create_dir_all(work)?;
    fs::create_dir_all(out)?;
    let corpus = Corpus::new(SEED);
    let encoder = Encoder::new(&tokenizer_json(&corpus, out)?)?;
    let mut state = State::newest(work)?;
    let losses = work.join(LOSSES);
    let mut first = if state.progress.step == 0 { String::new() } else { fs::read_to_string(&losses)? };
    let steps = stop_after.unwrap_or(STEPS).min(STEPS);
    println!(
        "{} parameters, from step {} to {steps}",
        state.parameters.iter().map(|p| p.values.len()).sum::<usize>(),
        state.progress.step
    );
    let (mut loss_sum, mut since) = (0.0, 0);
    while state.progress.step < steps {
        let loss = step(&mut state, &corpus, &encoder)?;
        let progress = state.progress;
        loss_sum += loss;
        since += 1;
        if progress.step <= COMMITTED_LOSSES {
            writeln!(first, "{}", loss_line(progress.step, loss))?;
        }
        if progress.step == COMMITTED_LOSSES {
            fs::write(out.join(LOSSES), &first)?;
        }
        if progress.step.is_multiple_of(LOG_EVERY) {
            println!(
                "step {} loss {:.4} tokens {} rate {:.1e} {:.0} s, {:.0} tokens/s",
                progress.step,
                loss_sum / f64::from(since),
                progress.tokens,
                schedule().at(progress.step),
                progress.seconds,
                progress.tokens as f64 / progress.seconds
            );
            (loss_sum, since) = (0.0, 0);
        }
        if progress.step.is_multiple_of(SAVE_EVERY) || progress.step == steps {
            fs::write(&losses, &first)?;
            state.save(work)?;
        }
    }
    Ok(())
}

/// The tokenizer in `out`, trained first if it isn't there.
fn tokenizer_json(corpus: &Corpus, out: &Path) -> anyhow::Result<String> {
    let path = out.join("tokenizer.json");
    if !path.is_file() {
        fs::write(&path, tokenizer::train(corpus)?)?;
    }
    fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Trains the first steps anew and compares their losses with the committed ones, to the bit.
pub(crate) fn check_first_losses(out: &Path) -> anyhow::Result<()> {
    let path = out.join(LOSSES);
    let committed = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let corpus = Corpus::new(SEED);
    let json = tokenizer::train(&corpus)?;
    if json != fs::read_to_string(out.join("tokenizer.json"))? {
        bail!("the tokenizer trained now differs from the one in `{}`", out.display());
    }
    let encoder = Encoder::new(&json)?;
    let mut state = State::initial();
    for line in committed.lines() {
        let loss = step(&mut state, &corpus, &encoder)?;
        let now = loss_line(state.progress.step, loss);
        if now != line {
            bail!("step {}: the loss was `{line}`, now it is `{now}`", state.progress.step);
        }
    }
    println!("the tokenizer and the losses of the first {} steps are the committed ones", state.progress.step);
    Ok(())
}

/// Readable, and with all bits.
fn loss_line(step: usize, loss: f64) -> String {
    format!("{step} {loss:.6} {:016x}", loss.to_bits())
}

/// One update; returns the loss before it, in nats a token.
fn step(state: &mut State, corpus: &Corpus, encoder: &Encoder) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut documents = Vec::new();
    let mut tokens = 0;
    loop {
        let sample = corpus.sample(TRAINING, state.progress.next_sample, Split::Train);
        let document = encoder.encode(&sample)?;
        if tokens + document.ids.len() > BATCH_TOKENS {
            break;
        }
        state.progress.next_sample += 1;
        if document.ids.len() <= MAX_DOCUMENT {
            tokens += document.ids.len();
            documents.push(document);
        }
    }
    let batch = Batch::new(&documents)?;
    let labels: Vec<u32> = batch.predicting.iter().map(|&(_, label)| label).collect();
    let model = Model::new(&state.parameters, true);
    let (loss, graph) = cross_entropy(model.forward(&batch), &labels);
    let mut gradients = graph.backward();
    let gradients: Vec<Option<Vec<f32>>> =
        state.parameters.iter().map(|p| model.gradient(&p.name, &mut gradients)).collect();
    drop(model);
    let norm = global_norm(gradients.iter().flatten().map(Vec::as_slice));
    if !(norm.is_finite() && loss.is_finite()) {
        bail!("step {}: the loss is {loss}, the gradient's norm {norm}", state.progress.step + 1);
    }
    let update =
        Update { gradient_scale: clip_factor(norm, CLIP) as f32, learning_rate: schedule().at(state.progress.step) };
    state.optimizer.begin_update();
    for (parameter, gradient) in state.parameters.iter_mut().zip(&gradients) {
        if let Some(gradient) = gradient {
            state.optimizer.apply(&parameter.name, &parameter.shape, &mut parameter.values, gradient, update);
        }
    }
    state.progress.step += 1;
    state.progress.tokens += tokens as u64;
    state.progress.learnt_tokens += labels.len() as u64;
    state.progress.seconds += started.elapsed().as_secs_f64();
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_goes_on_where_it_stopped() {
        let assets = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/tiny-target"));
        let corpus = Corpus::new(3);
        let encoder = Encoder::new(&fs::read_to_string(assets.join("tokenizer.json")).expect("a file")).expect("valid");
        let work = std::env::temp_dir().join(format!("xtask-train-{}", std::process::id()));
        let mut whole = State::initial();
        step(&mut whole, &corpus, &encoder).expect("a step");
        whole.save(&work).expect("saved");
        let mut resumed = State::newest(&work).expect("read");
        fs::remove_dir_all(&work).expect("removed");
        for _ in 0..2 {
            let losses = [&mut whole, &mut resumed].map(|state| step(state, &corpus, &encoder).expect("a step"));
            assert_eq!(losses[0].to_bits(), losses[1].to_bits(), "losses {losses:?}");
        }
        assert!(whole.parameters == resumed.parameters, "parameters differ");
        assert!(whole.optimizer == resumed.optimizer, "moments differ");
    }
}
