//! Copies of models with something changed.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// Copies the files of a model folder and changes the copy, whose path is returned.
pub(crate) fn copy_model(model: &Path, copy: &Path, change: impl Fn(&Path)) -> String {
    fs::create_dir(copy).expect("folder");
    for entry in fs::read_dir(model).expect("a model").flatten() {
        fs::copy(entry.path(), copy.join(entry.file_name())).expect("copy");
    }
    change(copy);
    copy.display().to_string()
}

/// Changes a JSON file.
pub(crate) fn edit_json(path: &Path, change: impl Fn(&mut Value)) {
    let mut json: Value = serde_json::from_str(&fs::read_to_string(path).expect("read")).expect("JSON");
    change(&mut json);
    fs::write(path, json.to_string()).expect("write");
}
