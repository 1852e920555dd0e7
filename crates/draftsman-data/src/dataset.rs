//! Documents to train on, and their split into training and validation.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::loop_rule::LoopRule;
use crate::loss_mask::{ChatEncoder, Turns, answer_mask};
use crate::records::{Record, RecordContent, read_records};
use crate::{DataError, ProblemList};

/// One sequence with its loss mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The record's id. Several documents share it when a chat has several answers.
    pub id: String,
    /// Where the record comes from, if it says so.
    pub source: Option<String>,
    /// Token ids.
    pub ids: Vec<u32>,
    /// True for the tokens to learn: the assistant's. As long as `ids`.
    pub loss_mask: Vec<bool>,
}

impl Document {
    /// How many tokens are supervised.
    pub fn supervised(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m).count()
    }
}

/// What to do with a document that is longer than the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TooLong {
    /// Refuse the data.
    #[default]
    Refuse,
    /// Cut the end off. A document whose answer begins behind the cut is still refused.
    Cut,
}

/// How records become documents.
#[derive(Debug, Clone, PartialEq)]
pub struct EncodeOptions {
    /// The most tokens a document may have: the context of the target.
    pub max_length: usize,
    /// What happens to longer ones.
    pub too_long: TooLong,
    /// The size of the target's vocabulary; an id outside is refused.
    pub vocab_size: Option<usize>,
    /// The drafter's mask token. Data that holds it is refused: the drafter could not tell it from an empty slot.
    pub mask_token_id: Option<u32>,
    /// Which of a chat's answers become documents.
    pub turns: Turns,
    /// Answers are cut where they begin to loop, by this rule.
    pub loop_rule: Option<LoopRule>,
}

impl EncodeOptions {
    /// Documents of up to `max_length` tokens; loops are cut by the default rule.
    pub fn new(max_length: usize) -> Self {
        Self {
            max_length,
            too_long: TooLong::Refuse,
            vocab_size: None,
            mask_token_id: None,
            turns: Turns::Each,
            loop_rule: Some(LoopRule::default()),
        }
    }
}

/// Documents, and what was done to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dataset {
    /// The documents in the order of their records.
    pub documents: Vec<Document>,
    /// How many answers were cut because they loop.
    pub loops_cut: usize,
    /// How many tokens those cuts dropped.
    pub loop_tokens_cut: usize,
    /// How many documents were shortened to the context.
    pub shortened: usize,
}

/// A dataset in two parts; no record id is in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// To learn from.
    pub train: Vec<Document>,
    /// To measure on, never learnt from.
    pub validation: Vec<Document>,
}

impl Dataset {
    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.documents.iter().map(|d| d.ids.len()).sum()
    }

    /// How many tokens are supervised.
    pub fn supervised(&self) -> usize {
        self.documents.iter().map(Document::supervised).sum()
    }

    /// Splits by a hash of seed and record id: a record stays on its side when others are added, removed or reordered.
    ///
    /// About `validation_share` of the ids go to validation. If that would leave a side empty although there are two ids, one id moves there.
    pub fn split(self, validation_share: f64, seed: u64) -> Split {
        let share = validation_share.clamp(0.0, 1.0);
        let threshold = (share * 2f64.powi(64)) as u64;
        let hashed: Vec<(u64, Document)> = self.documents.into_iter().map(|d| (split_hash(seed, &d.id), d)).collect();
        let lowest = hashed.iter().map(|(h, _)| *h).min();
        let highest = hashed.iter().map(|(h, _)| *h).max();
        let mut split = Split::default();
        for (hash, document) in hashed {
            let several = lowest != highest;
            let forced_in = several && share > 0.0 && Some(hash) == lowest;
            let forced_out = several && share < 1.0 && Some(hash) == highest;
            if (hash < threshold || share == 1.0 || forced_in) && !forced_out && share > 0.0 {
                split.validation.push(document);
            } else {
                split.train.push(document);
            }
        }
        split
    }
}

fn split_hash(seed: u64, id: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(id.as_bytes());
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |h, b| h << 8 | u64::from(*b))
}

/// Reads a file and makes documents of it (see [`build_dataset`]).
pub fn load_dataset(path: &Path, encoder: Option<&ChatEncoder>, options: &EncodeOptions) -> Result<Dataset, DataError> {
    build_dataset(path, read_records(path)?, encoder, options)
}

/// Makes documents of records. `encoder` is needed for chats only; `path` names the file in errors. All problems are reported together.
pub fn build_dataset(
    path: &Path,
    records: Vec<Record>,
    encoder: Option<&ChatEncoder>,
    options: &EncodeOptions,
) -> Result<Dataset, DataError> {
    let mut dataset = Dataset::default();
    let mut problems = ProblemList::default();
    if let Some(message) = options.loop_rule.as_ref().and_then(LoopRule::problem) {
        problems.push(message);
    }
    for record in records {
        let place = format!("{}:{} ({})", path.display(), record.line, record.id);
        if let Err(message) = add_record(&mut dataset, record, encoder, options) {
            problems.push(format!("{place}: {message}"));
        }
    }
    if !problems.is_empty() {
        return Err(DataError::Problems { problems });
    }
    if dataset.documents.is_empty() {
        return Err(DataError::Empty { path: path.to_owned() });
    }
    Ok(dataset)
}

fn add_record(
    dataset: &mut Dataset,
    record: Record,
    encoder: Option<&ChatEncoder>,
    options: &EncodeOptions,
) -> Result<(), String> {
    let Record { id, source, content, .. } = record;
    let mut answers = Vec::new();
    match content {
        RecordContent::Ids { input_ids, loss_mask } => {
            let document = Document { id, source, ids: input_ids, loss_mask };
            return add_document(dataset, document, options);
        }
        RecordContent::Answer { prompt_ids, response_ids, .. } => answers.push((prompt_ids, response_ids)),
        RecordContent::Chat { messages, tools } => {
            let encoder = encoder.ok_or("a chat needs the target's tokenizer and chat template, and there are none")?;
            let samples = encoder.samples(&messages, tools.as_ref(), options.turns).map_err(|e| e.to_string())?;
            if samples.is_empty() {
                return Err("no supervised token: the chat holds no message of the assistant; let the target answer it first (`data regenerate`)".into());
            }
            answers.extend(samples.into_iter().map(|s| (s.prompt_ids, s.response_ids)));
        }
    }
    for (mut ids, mut response) in answers {
        if let Some(start) = options.loop_rule.and_then(|rule| rule.loop_start(&response)) {
            dataset.loops_cut += 1;
            dataset.loop_tokens_cut += response.len() - start;
            response.truncate(start);
        }
        let loss_mask = answer_mask(ids.len(), response.len());
        ids.extend(response);
        add_document(dataset, Document { id: id.clone(), source: source.clone(), ids, loss_mask }, options)?;
    }
    Ok(())
}

fn add_document(dataset: &mut Dataset, mut document: Document, options: &EncodeOptions) -> Result<(), String> {
    if document.supervised() == 0 {
        return Err("no supervised token: nothing in it is the assistant's".into());
    }
    if let (Some(mask), Some(at)) =
        (options.mask_token_id, options.mask_token_id.and_then(|m| document.ids.iter().position(|id| *id == m)))
    {
        return Err(format!(
            "token {at} is the drafter's mask_token_id {mask}; choose a mask token that no data holds"
        ));
    }
    if let Some(size) = options.vocab_size
        && let Some(at) = document.ids.iter().position(|id| *id as usize >= size)
    {
        return Err(format!("token {at} is {}, outside the vocabulary of {size}", document.ids[at]));
    }
    if document.ids.len() > options.max_length {
        let long = format!("{} tokens are longer than the context of {}", document.ids.len(), options.max_length);
        if options.too_long == TooLong::Refuse {
            return Err(format!("{long}; shorten the record, or cut it"));
        }
        document.ids.truncate(options.max_length);
        document.loss_mask.truncate(options.max_length);
        if document.supervised() == 0 {
            return Err(format!("{long}, and no supervised token is left after the cut"));
        }
        dataset.shortened += 1;
    }
    dataset.documents.push(document);
    Ok(())
}
