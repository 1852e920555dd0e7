//! Reading lines and whole files with a bound, and replacing a file in one step.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use crate::DataError;

/// A line longer than this is refused: no honest record is.
pub(crate) const MAX_LINE: usize = 64 << 20;

/// Calls `line(number, bytes)` for every non-blank line, counted from 1; `.gz` files are unpacked on the way.
///
/// A line that is too long is reported with `None` and skipped.
pub(crate) fn for_each_line(path: &Path, line: impl FnMut(usize, Option<&[u8]>)) -> Result<(), DataError> {
    let file = File::open(path).map_err(|e| DataError::io(path, e))?;
    let read: Box<dyn Read> = match path.extension() {
        Some(e) if e == "gz" => Box::new(flate2::read::MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    lines(BufReader::new(read), MAX_LINE, line).map_err(|e| DataError::io(path, e))
}

/// The lines of a reader, none held longer than `max` bytes.
fn lines(mut read: impl BufRead, max: usize, mut line: impl FnMut(usize, Option<&[u8]>)) -> std::io::Result<()> {
    let mut number = 0;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let got = read.by_ref().take(max as u64 + 1).read_until(b'\n', &mut buffer)?;
        if got == 0 {
            return Ok(());
        }
        number += 1;
        if got > max && buffer.last() != Some(&b'\n') {
            line(number, None);
            // Drop the rest of the line piece by piece.
            while buffer.last() != Some(&b'\n') {
                buffer.clear();
                if read.by_ref().take(1 << 16).read_until(b'\n', &mut buffer)? == 0 {
                    return Ok(());
                }
            }
            continue;
        }
        let mut bytes = buffer.as_slice();
        if number == 1 {
            bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        }
        if !bytes.trim_ascii().is_empty() {
            line(number, Some(bytes.trim_ascii()));
        }
    }
}

/// A whole file, refused if it is longer than `max` bytes.
pub(crate) fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, DataError> {
    let file = File::open(path).map_err(|e| DataError::io(path, e))?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(|e| DataError::io(path, e))?;
    if bytes.len() as u64 > max {
        let message = format!("the file is longer than {} MiB, which no file of its kind is", max >> 20);
        return Err(DataError::io(path, std::io::Error::new(std::io::ErrorKind::InvalidData, message)));
    }
    Ok(bytes)
}

/// Writes a file under a temporary name, syncs it and renames it, so that a reader sees the old or the new one, never half of it.
pub(crate) fn replace_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), DataError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let made = (|| {
        let file = File::create(temporary)?;
        let mut out = std::io::BufWriter::new(file);
        write(&mut out)?;
        let file = out.into_inner().map_err(|e| e.into_error())?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        sync_folder(path)
    })();
    made.map_err(|e| {
        // Best effort: the rename has not happened, so the old file still stands.
        let _ = fs::remove_file(temporary);
        DataError::io(path, e)
    })
}

/// Makes a created or renamed entry of a folder durable. Systems that can't open a folder need no such thing.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::lines;

    fn check(text: &[u8], max: usize, expected: &[(usize, Option<&str>)]) {
        let mut got = Vec::new();
        lines(text, max, |n, l| got.push((n, l.map(|l| String::from_utf8_lossy(l).into_owned())))).unwrap();
        let got: Vec<_> = got.iter().map(|(n, l)| (*n, l.as_deref())).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn lines_are_numbered_and_bounded() {
        check(b"", 8, &[]);
        check(b"a\n\n  \nb", 8, &[(1, Some("a")), (4, Some("b"))]);
        check(b"\xef\xbb\xbfa\r\nb\r\n", 8, &[(1, Some("a")), (2, Some("b"))]);
        check(b"12345678\n123456789\nx", 8, &[(1, Some("12345678")), (2, None), (3, Some("x"))]);
        check(b"123456789012345678901234567890", 8, &[(1, None)]);
    }
}
