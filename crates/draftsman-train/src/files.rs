//! Writing files so that a crash or a full disk leaves the old one valid.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::error::TrainError;

/// Writes `path` whole: temporary name in the same folder, sync, rename, sync of the folder.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let temporary = path.with_extension("tmp");
    write_synced(&temporary, bytes)?;
    fs::rename(&temporary, path).map_err(TrainError::io(path, "rename to"))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Writes and syncs a file (not atomic by itself: for files inside a folder that is renamed as a whole).
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let mut file = File::create(path).map_err(TrainError::io(path, "create"))?;
    file.write_all(bytes).map_err(TrainError::io(path, "write"))?;
    file.sync_all().map_err(TrainError::io(path, "sync"))
}

/// Makes renames and new names in `folder` durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), TrainError> {
    // Only Unix lets a folder be opened and synced; elsewhere the rename alone has to do.
    if cfg!(unix) {
        let handle = File::open(folder).map_err(TrainError::io(folder, "open"))?;
        handle.sync_all().map_err(TrainError::io(folder, "sync"))?;
    }
    Ok(())
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TrainError> {
    fs::read(path).map_err(TrainError::io(path, "read"))
}

/// Reads a file as text.
pub(crate) fn read_text(path: &Path) -> Result<String, TrainError> {
    fs::read_to_string(path).map_err(TrainError::io(path, "read"))
}
