//! Two evaluations of the same prompts, compared pair by pair.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use draftsman_contract::{CounterRng, Interval, ThinkingMode};
use draftsman_data::LoopRule;
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::report::{PromptCounts, REPORT_VERSION};

/// More passes or drafts than any evaluation has: sums of such counts stay exact.
const MOST: u64 = 1 << 40;

/// Draws of the bootstrap.
const DRAWS: usize = 4000;

/// Stream word of the bootstrap, so that its draws are nobody else's.
const PAIRED_STREAM: u64 = 0x7061_6972;

/// What a comparison needs of a report that `eval` wrote.
#[derive(Debug, Clone, Deserialize)]
pub struct SavedReport {
    /// `live` or `replay`.
    pub mode: String,
    /// Budget of every answer.
    pub max_new_tokens: usize,
    /// 0 = greedy.
    pub temperature: f32,
    /// 0 = all tokens.
    pub top_k: usize,
    /// 1 = all tokens.
    pub top_p: f32,
    /// Seed of the sampling.
    pub seed: u64,
    /// Most verify passes of an answer.
    pub max_blocks: Option<usize>,
    /// What the chat template was told.
    pub thinking: Option<ThinkingMode>,
    /// What counts as a loop.
    pub loop_rule: LoopRule,
    /// Name of the target.
    pub target: String,
    /// Hash of its layers.
    pub target_layers_sha256: Option<String>,
    /// Questions that were not reached.
    pub unasked: usize,
    /// Its lines.
    pub proposers: Vec<SavedLine>,
}

/// One line of a saved report.
#[derive(Debug, Clone, Deserialize)]
pub struct SavedLine {
    /// `ngram`, a drafter, `ngram+drafter`.
    pub name: String,
    /// Its counts, prompt by prompt.
    pub per_prompt: Vec<PromptCounts>,
}

impl SavedReport {
    /// Reads a report that `eval --out` wrote.
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        let refuse = |problem: String| EvalError::SuiteFile {
            path: path.to_path_buf(),
            problem,
            hint: "give a file that `draftsman eval --out` wrote".into(),
        };
        let bytes = std::fs::read(path).map_err(|source| EvalError::Io { path: path.to_path_buf(), source })?;
        let version = serde_json::from_slice::<serde_json::Value>(&bytes)
            .map_err(|e| refuse(format!("not JSON: {e}")))?["report_version"]
            .as_u64();
        match version {
            None => return Err(refuse("not a report: it has no `report_version`".into())),
            Some(version) if version != u64::from(REPORT_VERSION) => {
                let problem = format!("report version {version}, this program compares version {REPORT_VERSION}");
                return Err(refuse(problem));
            }
            Some(_) => {}
        }
        let report: Self = serde_json::from_slice(&bytes).map_err(|e| refuse(format!("not a report: {e}")))?;
        for line in &report.proposers {
            let mut names = BTreeSet::new();
            for row in &line.per_prompt {
                if !names.insert((&row.suite, &row.id)) {
                    return Err(refuse(format!("`{}` has two rows of the prompt `{}`", line.name, row.id)));
                }
                let counts = [row.cycles_outside_loops, row.accepted_drafts_outside_loops];
                if counts.iter().any(|&count| count > MOST) {
                    return Err(refuse(format!("`{}` has absurd counts for the prompt `{}`", line.name, row.id)));
                }
            }
        }
        Ok(report)
    }

    /// The line of that name; without a name, the last one.
    pub fn line(&self, name: Option<&str>) -> Result<&SavedLine, String> {
        let names = || self.proposers.iter().map(|line| format!("`{}`", line.name)).collect::<Vec<_>>().join(", ");
        let Some(last) = self.proposers.last() else { return Err("it has no line".into()) };
        let Some(name) = name else { return Ok(last) };
        let mut found = self.proposers.iter().filter(|line| line.name == name);
        match (found.next(), found.next()) {
            (Some(line), None) => Ok(line),
            (Some(_), Some(_)) => Err(format!("two lines are called `{name}`")),
            (None, _) => Err(format!("no line is called `{name}`; there are {}", names())),
        }
    }
}

/// acceptance_length of B against A on the same prompts, outside loops.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Prompts in both.
    pub pairs: usize,
    /// Prompts in one of them only, left out.
    pub unpaired: usize,
    /// A's acceptance_length (micro) on the pairs.
    pub a: f64,
    /// B's.
    pub b: f64,
    /// b / a.
    pub ratio: f64,
    /// 95 % interval of the ratio: prompts drawn anew, both measured on the same draw. Absent with one pair, which says
    /// nothing about others.
    pub ratio_interval_95: Option<Interval>,
}

impl Comparison {
    /// Whether the interval says that B and A differ.
    pub fn is_separated(&self) -> bool {
        self.ratio_interval_95.is_some_and(|interval| interval.low > 1.0 || interval.high < 1.0)
    }
}

/// Compares two lines; `Ok(None)` when no prompt is in both with a cycle in each, an error where one name stands for two
/// prompts.
pub fn compare(a: &SavedLine, b: &SavedLine, seed: u64) -> Result<Option<Comparison>, String> {
    let name = |row: &PromptCounts| (row.suite.clone(), row.id.clone());
    let known: BTreeMap<(String, String), &PromptCounts> = a.per_prompt.iter().map(|row| (name(row), row)).collect();
    let pairs: Vec<(&PromptCounts, &PromptCounts)> =
        b.per_prompt.iter().filter_map(|row| Some((*known.get(&name(row))?, row))).collect();
    if let Some((_, row)) = pairs.iter().find(|(a, b)| a.prompt_sha256 != b.prompt_sha256) {
        return Err(format!("`{}` is another prompt in the one than in the other", row.id));
    }
    Ok(paired(&pairs, a.per_prompt.len() + b.per_prompt.len() - 2 * pairs.len(), seed))
}

fn paired(pairs: &[(&PromptCounts, &PromptCounts)], unpaired: usize, seed: u64) -> Option<Comparison> {
    let lengths = |pairs: &mut dyn Iterator<Item = &(&PromptCounts, &PromptCounts)>| {
        let mut sums = [[0u64; 2]; 2];
        for (a, b) in pairs {
            for (sum, row) in sums.iter_mut().zip([a, b]) {
                sum[0] += row.accepted_drafts_outside_loops + row.cycles_outside_loops;
                sum[1] += row.cycles_outside_loops;
            }
        }
        let [a, b] = sums.map(|[tokens, cycles]| (cycles > 0).then(|| tokens as f64 / cycles as f64));
        a.zip(b)
    };
    let (mean_a, mean_b) = lengths(&mut pairs.iter())?;
    let mut rng = CounterRng::new(seed, &[PAIRED_STREAM]);
    let mut ratios: Vec<f64> = (0..DRAWS)
        .filter_map(|_| {
            let draw: Vec<usize> = pairs.iter().map(|_| rng.below(pairs.len())).collect();
            lengths(&mut draw.iter().map(|&at| &pairs[at])).map(|(a, b)| b / a)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios.get(((ratios.len() as f64 - 1.0) * share).round() as usize).copied();
    let interval = at(0.025).zip(at(0.975)).filter(|_| pairs.len() > 1);
    Some(Comparison {
        pairs: pairs.len(),
        unpaired,
        a: mean_a,
        b: mean_b,
        ratio: mean_b / mean_a,
        ratio_interval_95: interval.map(|(low, high)| Interval { low, high }),
    })
}
