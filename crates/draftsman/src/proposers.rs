//! `--drafter` arguments: `none`, `ngram`, a drafter folder, or `ngram+FOLDER`.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use draftsman_decode::{DflashProposer, LookupThenDraft, NgramProposer, Proposer};
use draftsman_kernels::Weight;
use draftsman_models::{Dflash, DrafterConfig, NameMap, Target, check_pair};
use draftsman_train::{run_checkpoints, verify_checkpoint};

use crate::printer::Printer;

/// Drafts of the n-gram lookup where no drafter gives its block size.
const DEFAULT_NGRAM_DRAFTS: usize = 7;

/// What one `--drafter` argument asks for.
enum Kind {
    None,
    Ngram,
    /// Index into [`Proposers::drafters`].
    Drafter(usize),
    NgramThen(usize),
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
    lines: Vec<(String, Kind)>,
    drafters: Vec<(PathBuf, Dflash)>,
    ngram_block: usize,
}

impl Proposers {
    /// Opens every drafter and checks it against the target.
    pub(crate) fn open(
        arguments: &[String],
        name_map: Option<&Path>,
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
                let drafter = open_drafter(&path, name_map, borrowed, target.device())?;
                let trained_for = drafter.config().contract.target.layers_sha256.as_deref();
                if trained_for.zip(target.layers_sha256()).is_some_and(|(was, is)| was != is) {
                    printer.warning(format!(
                        "`{}` was trained for another target, or for another file of this one: acceptance may suffer, and validation numbers differ",
                        path.display()
                    ));
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
            lines.push((argument.clone(), kind));
        }
        let ngram_block = match (ngram_drafts, drafters.first()) {
            (Some(drafts), _) => drafts + 1,
            (None, Some((_, drafter))) => drafter.config().contract.block_size,
            (None, None) => DEFAULT_NGRAM_DRAFTS + 1,
        };
        Ok(Self { lines, drafters, ngram_block })
    }

    /// One proposer per argument, in order; `none` has none and is left out.
    pub(crate) fn build<'a>(&'a self, target: &'a dyn Target) -> anyhow::Result<Vec<Box<dyn Proposer + 'a>>> {
        let mut proposers: Vec<Box<dyn Proposer + 'a>> = Vec::new();
        for (name, kind) in &self.lines {
            let dflash = |index: usize| DflashProposer::new(name.clone(), &self.drafters[index].1, target, None);
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

    /// Name and block size of every proposer that [`Self::build`] returns.
    pub(crate) fn names(&self) -> Vec<(String, usize)> {
        let block = |index: usize| self.drafters[index].1.config().contract.block_size;
        self.lines
            .iter()
            .filter_map(|(name, kind)| match kind {
                Kind::None => None,
                Kind::Ngram => Some((name.clone(), self.ngram_block)),
                Kind::Drafter(index) => Some((name.clone(), block(*index))),
                Kind::NgramThen(index) => Some((name.clone(), block(*index).max(self.ngram_block))),
            })
            .collect()
    }

    /// The opened drafter folders.
    pub(crate) fn drafters(&self) -> &[(PathBuf, Dflash)] {
        &self.drafters
    }
}
