//! The embedded tiny target: a hybrid language model of some two million parameters for short Python functions and
//! tiny coding requests, made from nothing: own text, own tokenizer, trained here on the CPU.

mod batch;
mod card;
mod checkpoint;
mod corpus;
mod export;
mod loss;
mod model;
mod ngram;
mod recipe;
mod tokenizer;
mod train;

use std::path::PathBuf;

/// What to do. Without an option: train (or go on), export, measure, write the card.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Checkpoints, so that the training can go on where it was stopped.
    #[arg(long, default_value = "runs/tiny-target")]
    work: PathBuf,
    /// Where the model goes.
    #[arg(long, default_value = "assets/tiny-target")]
    out: PathBuf,
    /// Stop after so many steps instead of training to the end; the learning rate is that of the whole run.
    #[arg(long)]
    stop_after: Option<usize>,
    /// Only export the newest checkpoint and compare it with what it is loaded as.
    #[arg(long)]
    export: bool,
    /// Only measure the exported model and write its card.
    #[arg(long)]
    card: bool,
    /// Only run the first 100 steps, from nothing, and compare their losses with the committed ones.
    #[arg(long)]
    check: bool,
    /// Only print some samples of the text.
    #[arg(long)]
    samples: Option<u64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(count) = options.samples {
        return corpus_samples(count);
    }
    if options.check {
        return train::check_first_losses(&options.out);
    }
    let whole = !options.export && !options.card;
    if whole {
        train::train(&options.work, &options.out, options.stop_after)?;
    }
    if whole && options.stop_after.is_some() {
        return Ok(());
    }
    if whole || options.export {
        export::export(&options.work, &options.out)?;
    }
    if whole || options.card {
        card::measure_and_write(&options.out)?;
    }
    Ok(())
}

fn corpus_samples(count: u64) -> anyhow::Result<()> {
    let corpus = corpus::Corpus::new(recipe::SEED);
    for index in 0..count {
        match corpus.sample(corpus::TRAINING, index, corpus::Split::Train) {
            corpus::Sample::Function(function) => println!("--- function\n{}", function.text()),
            corpus::Sample::Chat(chat) => println!("--- {}\nQ: {}\nA: {}", chat.kind, chat.request, chat.answer),
        }
    }
    Ok(())
}
