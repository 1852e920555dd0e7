//! The prompts of an evaluation: suites, and the questions of their conversations as tokens.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::bail;
use draftsman_eval::{EvalPrompt, FailedPrompt, PromptSource, Selection, Suite, SuitePrompt, load_suite, read_suite};

use crate::args::EvalArgs;
use crate::model::Model;

/// `--prompts builtin`: the suite that is part of the program (assets/suite).
const BUILT_IN: &str = "builtin";

/// The suites that the arguments name.
pub(super) struct Prompts(Vec<(PathBuf, Suite)>);

impl Prompts {
    /// Reads and checks every suite.
    pub(super) fn read(args: &EvalArgs) -> anyhow::Result<Self> {
        let limits = &args.num_prompts;
        if limits.len() > 1 && limits.len() != args.prompts.len() {
            bail!(
                "`--num-prompts` gives {} numbers for {} suites\n\nhint: give one for all, or one for each `--prompts` in order",
                limits.len(),
                args.prompts.len()
            );
        }
        let mut suites: Vec<(PathBuf, Suite)> = Vec::new();
        for (at, path) in args.prompts.iter().enumerate() {
            let limit = limits.get(at).or(limits.first().filter(|_| limits.len() == 1)).copied();
            let selection = Selection { limit, seed: args.shuffle_seed };
            let suite = if path == Path::new(BUILT_IN) {
                read_suite(path, include_bytes!("../../../assets/suite/builtin.jsonl").as_slice(), &selection)?
            } else {
                load_suite(path, &selection)?
            };
            if let Some((other, _)) = suites.iter().find(|(_, other)| other.name == suite.name) {
                bail!(
                    "`{}` and `{}` are both the suite `{}`\n\nhint: suites are told apart by their file names",
                    other.display(),
                    path.display(),
                    suite.name
                );
            }
            suites.push((path.clone(), suite));
        }
        Ok(Self(suites))
    }

    /// File, suite and line of every prompt, in order.
    fn all(&self) -> impl Iterator<Item = (&Path, &Suite, &SuitePrompt)> {
        self.0.iter().flat_map(|(path, suite)| suite.prompts.iter().map(move |prompt| (path.as_path(), suite, prompt)))
    }

    /// The first question of every prompt. One that the target cannot be asked fails alone; if none is left, the first
    /// one's problem is the error.
    pub(super) fn questions(&self, model: &Model) -> anyhow::Result<(Vec<EvalPrompt>, Vec<FailedPrompt>)> {
        let (mut prompts, mut failed) = (Vec::new(), Vec::new());
        let mut names = BTreeSet::new();
        for (index, (path, suite, prompt)) in self.all().enumerate() {
            let mut question = EvalPrompt {
                suite: suite.name.clone(),
                category: prompt.category.clone(),
                turns: prompt.follow_ups.len() + 1,
                ..EvalPrompt::new(index, prompt.id.as_str(), Vec::new())
            };
            for turn in 0..question.turns {
                let name = EvalPrompt { turn, ..question.clone() }.name();
                if !names.insert((suite.name.clone(), name.clone())) {
                    bail!(
                        "{}:{}: the name `{name}` occurs twice\n\nhint: `ID#N` names question N of a conversation; make the ids differ",
                        path.display(),
                        prompt.line
                    );
                }
            }
            match ids(model, prompt, &[]) {
                Ok(ids) => {
                    question.ids = ids;
                    prompts.push(question);
                }
                Err(error) if needs_text(prompt) && model.text().is_err() => return Err(error),
                Err(error) => {
                    let place = format!("{}:{}", path.display(), prompt.line);
                    failed.extend(FailedPrompt::with_rest(&question, format!("{place}: {error:#}")));
                }
            }
        }
        match failed.first() {
            Some(first) if prompts.is_empty() => bail!("`{}`: {}", first.id, first.problem),
            _ => Ok((prompts, failed)),
        }
    }

    /// The question of `prompt`'s conversation that follows these answers.
    pub(super) fn next(&self, model: &Model, prompt: &EvalPrompt, answers: &[Vec<u32>]) -> Result<Vec<u32>, String> {
        let (_, _, source) = self.all().nth(prompt.index).ok_or("no such prompt")?;
        ids(model, source, answers).map_err(|error| format!("{error:#}"))
    }

    /// What is evaluated, for people.
    pub(super) fn describe(&self) -> String {
        let suites = self.0.iter();
        let parts = suites.map(|(path, suite)| {
            format!("{} of {} prompts from `{}`", suite.prompts.len(), suite.available, path.display())
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Names of the suites.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, suite)| suite.name.as_str())
    }
}

/// Whether the prompt is words.
fn needs_text(prompt: &SuitePrompt) -> bool {
    matches!(prompt.source, PromptSource::Messages { .. })
}

/// The question after `answers`, checked against the target.
fn ids(model: &Model, prompt: &SuitePrompt, answers: &[Vec<u32>]) -> anyhow::Result<Vec<u32>> {
    let ids = model.suite_prompt_ids(prompt, answers)?;
    let spec = model.target.spec();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= spec.vocab_size) {
        bail!(
            "token {id} is outside the target's vocabulary of {}\n\nhint: these ids come from another tokenizer",
            spec.vocab_size
        );
    }
    if ids.len() >= spec.max_positions {
        bail!(
            "{} tokens leave no room for an answer in a context of {}\n\nhint: shorten the prompt",
            ids.len(),
            spec.max_positions
        );
    }
    Ok(ids)
}
