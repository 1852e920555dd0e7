//! Two evaluations of the same prompts, compared pair by pair.

use std::collections::BTreeMap;
use std::path::Path;

use draftsman_contract::{CounterRng, Interval};
use serde::{Deserialize, Serialize};

use crate::EvalError;
use crate::report::{PromptCounts, REPORT_VERSION};

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
        if version != Some(u64::from(REPORT_VERSION)) {
            return Err(refuse(format!("report version {version:?}, this program compares version {REPORT_VERSION}")));
        }
        serde_json::from_slice(&bytes).map_err(|e| refuse(format!("not a report: {e}")))
    }

    /// The line of that name; without a name, the last one.
    pub fn line(&self, name: Option<&str>) -> Result<&SavedLine, String> {
        let found = match name {
            None => self.proposers.last(),
            Some(name) => self.proposers.iter().find(|line| line.name == name),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.proposers.iter().map(|line| line.name.as_str()).collect();
            format!("no line is called {:?}; there are {}", name.unwrap_or_default(), names.join(", "))
        })
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
    /// 95 % interval of the ratio: prompts drawn anew, both measured on the same draw.
    pub ratio_interval_95: Interval,
}

impl Comparison {
    /// Whether the interval says that B and A differ.
    pub fn is_separated(&self) -> bool {
        self.ratio_interval_95.low > 1.0 || self.ratio_interval_95.high < 1.0
    }
}

/// Compares two lines; `None` when no prompt is in both with a cycle in each.
pub fn compare(a: &SavedLine, b: &SavedLine, seed: u64) -> Option<Comparison> {
    let name = |row: &PromptCounts| (row.suite.clone(), row.id.clone());
    let known: BTreeMap<(String, String), &PromptCounts> = a.per_prompt.iter().map(|row| (name(row), row)).collect();
    let pairs: Vec<(&PromptCounts, &PromptCounts)> =
        b.per_prompt.iter().filter_map(|row| Some((*known.get(&name(row))?, row))).collect();
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
    Some(Comparison {
        pairs: pairs.len(),
        unpaired: a.per_prompt.len() + b.per_prompt.len() - 2 * pairs.len(),
        a: mean_a,
        b: mean_b,
        ratio: mean_b / mean_a,
        ratio_interval_95: Interval { low: at(0.025)?, high: at(0.975)? },
    })
}
