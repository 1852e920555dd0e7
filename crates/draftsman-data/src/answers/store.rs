//! The files behind an answer store.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Answer, AnswerSettings, AnswerSummary};
use crate::files::{for_each_line, read_bounded, replace_file, sync_folder};
use crate::records::Prompt;
use crate::{DataError, ProblemList};

/// An open store; see the module above for its files.
#[derive(Debug)]
pub struct AnswerStore {
    path: PathBuf,
    part_path: PathBuf,
    part: File,
    /// The length of the part file up to its last whole answer.
    part_len: u64,
    answers: BTreeMap<String, Answer>,
    dropped_bytes: u64,
    /// Holds the lock while the store lives.
    _lock: File,
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

impl AnswerStore {
    /// Opens the store at `path`, a new one or one to be continued. Fails if it is in use or was made with other settings.
    pub fn open(path: &Path, settings: &AnswerSettings) -> Result<Self, DataError> {
        let lock = lock(path)?;
        check_settings(path, settings)?;
        let part_path = beside(path, ".part");
        let mut answers = BTreeMap::new();
        if path.exists() {
            read_finished(path, &mut answers)?;
        }
        let mut part = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&part_path)
            .map_err(|e| DataError::io(&part_path, e))?;
        let (part_len, dropped_bytes) = read_part(&part_path, &mut part, &mut answers)?;
        if dropped_bytes > 0 {
            part.set_len(part_len).and_then(|()| part.sync_all()).map_err(|e| DataError::io(&part_path, e))?;
        }
        part.seek(SeekFrom::Start(part_len)).map_err(|e| DataError::io(&part_path, e))?;
        sync_folder(path).map_err(|e| DataError::io(path, e))?;
        Ok(Self { path: path.to_owned(), part_path, part, part_len, answers, dropped_bytes, _lock: lock })
    }

    /// How many bytes of a torn last line were dropped on opening; 0 after a clean stop.
    pub fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// How many answers there are.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// True while there is no answer.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Which of the prompts still need an answer, as (index, prompt ids), given the ids of all prompts in order.
    ///
    /// Fails if a stored answer belongs to another text under the same id: then it would be mistaken for the answer.
    pub fn missing(&self, prompts: &[(&Prompt, Vec<u32>)]) -> Result<Vec<(usize, Vec<u32>)>, DataError> {
        let mut missing = Vec::new();
        let mut problems = ProblemList::default();
        for (index, (prompt, ids)) in prompts.iter().enumerate() {
            match self.answers.get(&prompt.id) {
                None => missing.push((index, ids.clone())),
                Some(answer) if answer.prompt_ids == *ids => {}
                Some(_) => problems.push(format!(
                    "{}: the answer {:?} was written to another prompt of that id (the prompt was changed); give the prompt a new id or use another --out",
                    self.path.display(),
                    prompt.id
                )),
            }
        }
        if problems.is_empty() { Ok(missing) } else { Err(DataError::Problems { problems }) }
    }

    /// Adds a finished answer and syncs it to disk: once this returns, a kill can't lose it.
    ///
    /// If writing fails (a full disk), the file is put back to its last whole answer.
    pub fn append(&mut self, answer: Answer) -> Result<(), DataError> {
        if self.answers.contains_key(&answer.id) {
            return Err(DataError::store(&self.path, format!("the prompt {:?} is answered already", answer.id)));
        }
        let mut line = serde_json::to_vec(&answer).map_err(|e| DataError::store(&self.path, e.to_string()))?;
        line.push(b'\n');
        if let Err(e) = self.part.write_all(&line).and_then(|()| self.part.sync_data()) {
            // Best effort; should this fail too, the torn line is dropped when the store is opened again.
            let _ = self
                .part
                .set_len(self.part_len)
                .and_then(|()| self.part.seek(SeekFrom::Start(self.part_len)).map(|_| ()));
            return Err(DataError::io(&self.part_path, e));
        }
        self.part_len += line.len() as u64;
        self.answers.insert(answer.id.clone(), answer);
        Ok(())
    }

    /// The answers so far, by index and then id.
    pub fn answers(&self) -> Vec<&Answer> {
        let mut all: Vec<&Answer> = self.answers.values().collect();
        all.sort_by(|a, b| a.index.cmp(&b.index).then_with(|| a.id.cmp(&b.id)));
        all
    }

    /// Counts over the answers so far.
    pub fn summary(&self) -> AnswerSummary {
        let mut summary = AnswerSummary::default();
        self.answers.values().for_each(|a| summary.add(a));
        summary
    }

    /// Writes all answers in order to the store's file, in one step, and removes the part file.
    pub fn finish(self) -> Result<AnswerSummary, DataError> {
        let summary = self.summary();
        let all = self.answers();
        replace_file(&self.path, |out| {
            for answer in all {
                serde_json::to_writer(&mut *out, answer)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        })?;
        fs::remove_file(&self.part_path)
            .and_then(|()| sync_folder(&self.path))
            .map_err(|e| DataError::io(&self.part_path, e))?;
        Ok(summary)
    }
}

fn lock(path: &Path) -> Result<File, DataError> {
    let lock_path = beside(path, ".lock");
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&lock_path)
        .map_err(|e| DataError::io(&lock_path, e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(DataError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(e)) => Err(DataError::io(&lock_path, e)),
    }
}

/// Compares with the stored settings, or stores them if the store is new.
fn check_settings(path: &Path, settings: &AnswerSettings) -> Result<(), DataError> {
    let settings_path = beside(path, ".settings.json");
    // Through text, so that both sides went through the same number formatting.
    let text = serde_json::to_string_pretty(settings).map_err(|e| DataError::store(path, e.to_string()))?;
    if !settings_path.exists() {
        if path.exists() || beside(path, ".part").exists() {
            return Err(DataError::store(
                path,
                format!(
                    "the file is there but {} isn't, so it can't be told how its answers were made; choose another --out",
                    settings_path.display()
                ),
            ));
        }
        return replace_file(&settings_path, |out| out.write_all(text.as_bytes()));
    }
    let stored: Value = serde_json::from_slice(&read_bounded(&settings_path, 1 << 20)?)
        .map_err(|e| DataError::store(&settings_path, format!("malformed JSON: {e}")))?;
    let ours: Value = serde_json::from_str(&text).map_err(|e| DataError::store(path, e.to_string()))?;
    let differences = AnswerSettings::differences(&stored, &ours);
    if differences.is_empty() {
        return Ok(());
    }
    Err(DataError::store(
        path,
        format!(
            "the answers in it were made with other settings ({}); use the same ones to continue, or another --out",
            differences.join("; ")
        ),
    ))
}

/// Reads the file of a finished store; every line must be whole.
fn read_finished(path: &Path, answers: &mut BTreeMap<String, Answer>) -> Result<(), DataError> {
    let mut problems = ProblemList::default();
    for_each_line(path, |number, bytes| match bytes.map(serde_json::from_slice::<Answer>) {
        Some(Ok(answer)) => drop(answers.insert(answer.id.clone(), answer)),
        Some(Err(e)) => problems.push(format!("{}:{number}: no answer: {e}", path.display())),
        None => problems.push(format!("{}:{number}: the line is longer than any answer may be", path.display())),
    })?;
    if problems.is_empty() { Ok(()) } else { Err(DataError::Problems { problems }) }
}

/// Reads the part file: its answers, the length of its whole lines and the length of a torn rest.
fn read_part(path: &Path, part: &mut File, answers: &mut BTreeMap<String, Answer>) -> Result<(u64, u64), DataError> {
    let mut bytes = Vec::new();
    part.read_to_end(&mut bytes).map_err(|e| DataError::io(path, e))?;
    let mut whole = 0;
    for (number, line) in bytes.split_inclusive(|b| *b == b'\n').enumerate() {
        let last = whole + line.len() == bytes.len();
        let parsed = if line.ends_with(b"\n") {
            serde_json::from_slice::<Answer>(line).map_err(|e| e.to_string())
        } else {
            Err("torn".into())
        };
        match parsed {
            Ok(answer) => drop(answers.insert(answer.id.clone(), answer)),
            Err(_) if last => break,
            // A line that is broken in the middle isn't the mark of a kill; it would be wrong to drop what follows it.
            Err(e) => {
                return Err(DataError::store(
                    path,
                    format!("line {}: no answer: {e}; the file was damaged, remove that line to go on", number + 1),
                ));
            }
        }
        whole += line.len();
    }
    Ok((whole as u64, (bytes.len() - whole) as u64))
}
