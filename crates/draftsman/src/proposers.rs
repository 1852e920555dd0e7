//! `--drafter` arguments: `none`, `ngram`, a drafter folder, or `ngram+FOLDER`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use burn::tensor::Device;
use draftsman_contract::TreeRule;
use draftsman_decode::{DflashProposer, LookupThenDraft, NgramProposer, Proposer};
use draftsman_kernels::Weight;
use draftsman_models::{Dflash, DrafterConfig, NameMap, Target, check_pair};
use draftsman_train::{run_checkpoints, verify_checkpoint};

use crate::args::OpeningArgs;
use crate::printer::Printer;

/// Drafts of the n-gram lookup where no drafter gives its block size.
const DEFAULT_NGRAM_DRAFTS: usize = 7;

/// What one `--drafter` argument asks for.
#[derive(Clone, Copy)]
enum Kind {
    None,
    Ngram,
    /// Index into [`Proposers::drafters`].
    Drafter(usize),
    NgramThen(usize),
}

/// A way to draft, as a line of a table.
struct Line {
    name: String,
    kind: Kind,
    /// How its drafter makes trees; a budget of 0 makes chains.
    tree: TreeRule,
}

/// A drafter folder as given, or the best checkpoint of a run folder (the newest where none was chosen).
fn drafter_folder(path: &str) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(path);
    if !path.join("config.json").exists() && path.join("checkpoints").is_dir() {
        let checkpoints = run_checkpoints(&path)?;
        return Ok(checkpoints.best.unwrap_or(checkpoints.latest));
    }
    Ok(path)
}

/// The configuration of a drafter folder, or the one beside a drafter's weight file.
pub(crate) fn drafter_config(path: &Path) -> anyhow::Result<DrafterConfig> {
    let folder = if path.is_file() { path.parent().unwrap_or(Path::new("")) } else { path };
    Ok(DrafterConfig::read(&folder.join("config.json"))?)
}

/// Reads a drafter that borrows `embedding` and `head`. A checkpoint of ours proves itself by its checksums first.
pub(crate) fn open_drafter(
    path: &Path,
    name_map: Option<&Path>,
    (embedding, head): (&Weight, &Weight),
    device: &Device,
) -> anyhow::Result<Dflash> {
    if path.join("checksums.json").exists() {
        verify_checkpoint(path)?;
    }
    let names = name_map.map(NameMap::read).transpose()?;
    let opened = draftsman_models::open_drafter(path, names.as_ref(), device)?;
    opened.check_copies(embedding, head, device)?;
    Ok(opened.drafter)
}

/// The opened drafters of a command, in the order of the arguments.
pub(crate) struct Proposers {
    lines: Vec<Line>,
    drafters: Vec<(PathBuf, Dflash)>,
    ngram_block: usize,
}

impl Proposers {
    /// Opens every drafter and checks it against the target.
    pub(crate) fn open(
        arguments: &[String],
        opening: &OpeningArgs,
        target: &dyn Target,
        ngram_drafts: Option<usize>,
        printer: &Printer,
    ) -> anyhow::Result<Self> {
        let mut drafters: Vec<(PathBuf, Dflash)> = Vec::new();
        let mut lines = Vec::new();
        for argument in arguments {
            let mut open = |path: &str| -> anyhow::Result<usize> {
                let path = drafter_folder(path)?;
                if let Some(known) = drafters.iter().position(|(p, _)| *p == path) {
                    return Ok(known);
                }
                // Before its weights are compared with the target's: another vocabulary is told as such.
                check_pair(&drafter_config(&path)?, target.spec())
                    .map_err(|problems| anyhow::anyhow!("`{}` does not fit the target: {problems}", path.display()))?;
                let borrowed = (target.embedding(), target.head());
                let drafter = open_drafter(&path, opening.name_map.as_deref(), borrowed, target.device())?;
                let trained_for = drafter.config().contract.target.layers_sha256.as_deref();
                if let Some((was, is)) = trained_for.zip(target.layers_sha256())
                    && was != is
                {
                    let problem = format!(
                        "`{}` was trained for another target, or for another file of this one: layers_sha256 {was} there, {is} here",
                        path.display()
                    );
                    if !opening.other_target {
                        bail!(
                            "{problem}\n\nhint: give the target it was trained for, or `--other-target` to see how far it gets with this one"
                        );
                    }
                    printer.warning(format!("{problem}; acceptance may suffer, and validation numbers differ"));
                }
                drafters.push((path, drafter));
                Ok(drafters.len() - 1)
            };
            let kind = match argument.as_str() {
                "none" => Kind::None,
                "ngram" => Kind::Ngram,
                other => match other.strip_prefix("ngram+") {
                    Some(path) => Kind::NgramThen(open(path)?),
                    None => Kind::Drafter(open(other)?),
                },
            };
            lines.push(Line { name: argument.clone(), kind, tree: TreeRule::best_first(0) });
        }
        let ngram_block = match (ngram_drafts, drafters.first()) {
            (Some(drafts), _) => drafts + 1,
            (None, Some((_, drafter))) => drafter.config().contract.block_size,
            (None, None) => DEFAULT_NGRAM_DRAFTS + 1,
        };
        Ok(Self { lines, drafters, ngram_block })
    }

    /// A line per drafter and rule instead of one per drafter: `NAME`, `NAME ddtree8`. What has no drafter keeps its one
    /// line, for lookup makes chains only.
    pub(crate) fn with_trees(self, rules: &[TreeRule]) -> Self {
        let lines = self.lines.into_iter().flat_map(|line| match line.kind {
            Kind::None | Kind::Ngram => vec![line],
            Kind::Drafter(_) | Kind::NgramThen(_) => rules
                .iter()
                .map(|&tree| Line { name: format!("{}{}", line.name, tree_suffix(&tree)), kind: line.kind, tree })
                .collect(),
        });
        Self { lines: lines.collect(), ..self }
    }

    /// One proposer per argument, in order; `none` has none and is left out.
    pub(crate) fn build<'a>(&'a self, target: &'a dyn Target) -> anyhow::Result<Vec<Box<dyn Proposer + 'a>>> {
        let mut proposers: Vec<Box<dyn Proposer + 'a>> = Vec::new();
        for Line { name, kind, tree } in &self.lines {
            let dflash = |index: usize| {
                DflashProposer::new(name.clone(), &self.drafters[index].1, target, None)?.with_tree(*tree)
            };
            match kind {
                Kind::None => {}
                Kind::Ngram => proposers.push(Box::new(NgramProposer::new(self.ngram_block))),
                Kind::Drafter(index) => proposers.push(Box::new(dflash(*index)?)),
                Kind::NgramThen(index) => proposers
                    .push(Box::new(LookupThenDraft::new(NgramProposer::new(self.ngram_block), dflash(*index)?))),
            }
        }
        Ok(proposers)
    }

    /// The drafters that draft chains by themselves, each with its place among what [`Self::build`] returns.
    pub(crate) fn chains<'a>(&'a self, target: &'a dyn Target) -> anyhow::Result<Vec<(usize, DflashProposer<'a>)>> {
        let lines = self.lines.iter().filter(|line| !matches!(line.kind, Kind::None)).enumerate();
        let chains = lines.filter_map(|(at, Line { name, kind, tree })| match kind {
            Kind::Drafter(index) if tree.budget == 0 => Some((at, name, *index)),
            _ => None,
        });
        chains
            .map(|(at, name, index)| {
                Ok((at, DflashProposer::new(name.clone(), &self.drafters[index].1, target, None)?))
            })
            .collect()
    }

    /// Name and most verified rows, anchor included, of every proposer that [`Self::build`] returns.
    pub(crate) fn names(&self) -> Vec<(String, usize)> {
        let rows = |index: usize, tree: &TreeRule| match tree.budget {
            0 => self.drafters[index].1.config().contract.block_size,
            nodes => nodes + 1,
        };
        self.lines
            .iter()
            .filter_map(|Line { name, kind, tree }| match kind {
                Kind::None => None,
                Kind::Ngram => Some((name.clone(), self.ngram_block)),
                Kind::Drafter(index) => Some((name.clone(), rows(*index, tree))),
                Kind::NgramThen(index) => Some((name.clone(), rows(*index, tree).max(self.ngram_block))),
            })
            .collect()
    }

    /// The opened drafter folders.
    pub(crate) fn drafters(&self) -> &[(PathBuf, Dflash)] {
        &self.drafters
    }
}

/// What a line's name says about its trees.
pub(crate) fn tree_suffix(tree: &TreeRule) -> String {
    let TreeRule { budget, seeded, temperature } = *tree;
    if budget == 0 {
        return String::new();
    }
    let seeded = if seeded { " seeded" } else { "" };
    let temperature = if temperature == 1.0 { String::new() } else { format!(" temperature {temperature}") };
    format!(" ddtree{budget}{seeded}{temperature}")
}
