//! The zip container of `torch.save`: every entry stored as it is, so that its bytes are a range of the file.

use std::collections::BTreeMap;
use std::ops::Range;

const LOCAL: [u8; 4] = *b"PK\x03\x04";
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const END: [u8; 4] = *b"PK\x05\x06";
const END_64: [u8; 4] = *b"PK\x06\x06";
const END_64_LOCATOR: [u8; 4] = *b"PK\x06\x07";
/// Size of the end record without its comment.
const END_BYTES: usize = 22;
const MAX_COMMENT: usize = u16::MAX as usize;
/// A 32-bit field that says: see the 64-bit extra field.
const IN_EXTRA: u64 = u32::MAX as u64;

/// True when the bytes start like a zip file.
pub(super) fn is_zip(file: &[u8]) -> bool {
    file.starts_with(&LOCAL) || file.starts_with(&END)
}

/// Name and place of every entry. Checksums are not compared: `torch.save` can be told to leave them out.
pub(super) fn entries(file: &[u8]) -> Result<BTreeMap<String, Range<usize>>, String> {
    let directory = directory(file)?;
    let mut entries = BTreeMap::new();
    let mut rest = Fields(&file[directory.clone()]);
    while !rest.0.is_empty() {
        let (name, data) = entry(file, &mut rest, directory.start)?;
        if entries.insert(name.clone(), data).is_some() {
            return Err(format!("entry {name:?} occurs twice"));
        }
    }
    let mut spans: Vec<(&Range<usize>, &String)> = entries.iter().map(|(name, data)| (data, name)).collect();
    spans.sort_by_key(|(data, _)| (data.start, data.end));
    for pair in spans.windows(2) {
        if pair[1].0.start < pair[0].0.end {
            return Err(format!("entries {:?} and {:?} overlap", pair[0].1, pair[1].1));
        }
    }
    Ok(entries)
}

/// Where the central directory lies.
fn directory(file: &[u8]) -> Result<Range<usize>, String> {
    let truncated = || "it has no end record: the file is truncated, or no zip file".to_string();
    let last = file.len().checked_sub(END_BYTES).ok_or_else(truncated)?;
    // The end record closes the file, but for a comment whose length it gives.
    let end = (last.saturating_sub(MAX_COMMENT)..=last)
        .rev()
        .find(|&at| file[at..].starts_with(&END) && at + END_BYTES + u16_at(file, at + 20) as usize == file.len())
        .ok_or_else(truncated)?;
    let mut record = Fields(&file[end + 4..]);
    let disks = (record.u16()?, record.u16()?);
    record.u16()?;
    let (_, mut size, mut start) = (record.u16()?, record.u32()?, record.u32()?);
    if disks != (0, 0) {
        return Err("it is one of several volumes".into());
    }
    if let Some(locator) = end.checked_sub(20).filter(|&at| file[at..].starts_with(&END_64_LOCATOR)) {
        let at = Fields(&file[locator + 8..]).u64()?;
        let at = usize::try_from(at).ok().filter(|&at| at < locator && file[at..].starts_with(&END_64));
        let at = at.ok_or("its 64-bit end record is not where the locator says")?;
        // Past the sizes of the record, versions, volumes and counts.
        let mut record = Fields(&file[at + 4..]);
        record.take(8 + 2 + 2 + 4 + 4 + 8 + 8)?;
        (size, start) = (record.u64()?, record.u64()?);
    }
    let directory =
        start.checked_add(size).filter(|&stop| stop <= end as u64).map(|stop| start as usize..stop as usize);
    directory.ok_or_else(|| format!("its directory of {size} bytes at byte {start} is not inside the file"))
}

/// Reads one record of the central directory and checks it against the entry's own header.
fn entry(file: &[u8], record: &mut Fields<'_>, data_end: usize) -> Result<(String, Range<usize>), String> {
    if record.take(4)? != CENTRAL {
        return Err("its directory is damaged".into());
    }
    record.take(2 + 2)?;
    let (flags, method) = (record.u16()?, record.u16()?);
    record.take(2 + 2 + 4)?;
    let (mut packed, mut size) = (record.u32()?, record.u32()?);
    let (name_len, extra_len, comment_len) = (record.u16()?, record.u16()?, record.u16()?);
    record.take(2 + 2 + 4)?;
    let mut start = record.u32()?;
    let raw_name = record.take(name_len as usize)?;
    let mut extra = Fields(record.take(extra_len as usize)?);
    record.take(comment_len as usize)?;
    let name = std::str::from_utf8(raw_name).map_err(|_| "the name of an entry is not UTF-8")?.to_string();
    while extra.0.len() >= 4 {
        let (kind, len) = (extra.u16()?, extra.u16()?);
        let mut field = Fields(extra.take(len as usize)?);
        if kind == 1 {
            for value in [&mut size, &mut packed, &mut start] {
                if *value == IN_EXTRA {
                    *value = field.u64()?;
                }
            }
        }
    }
    if flags & 1 != 0 {
        return Err(format!("entry {name:?} is encrypted"));
    }
    if method != 0 || packed != size {
        return Err(format!("entry {name:?} is compressed; torch.save stores entries as they are"));
    }
    let outside = || format!("entry {name:?} of {size} bytes at byte {start} is not inside the file");
    let local = usize::try_from(start).ok().and_then(|start| file.get(start..data_end)).ok_or_else(outside)?;
    let mut header = Fields(local);
    let same = header.take(4).is_ok_and(|magic| magic == LOCAL);
    header.take(22).map_err(|_| outside())?;
    let (name_len, extra_len) = (header.u16().map_err(|_| outside())?, header.u16().map_err(|_| outside())?);
    if !same || header.take(name_len as usize).map_err(|_| outside())? != raw_name {
        return Err(format!("entry {name:?} has another header than the directory says"));
    }
    header.take(extra_len as usize).map_err(|_| outside())?;
    let data_start = data_end - header.0.len();
    let data = data_start as u64..(data_start as u64).checked_add(size).ok_or_else(outside)?;
    if data.end > data_end as u64 {
        return Err(outside());
    }
    Ok((name, data.start as usize..data.end as usize))
}

/// Little-endian fields read one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("its directory ends in the middle of a record")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, String> {
        Ok(u16_at(self.take(2)?, 0))
    }

    fn u32(&mut self) -> Result<u64, String> {
        let bytes = self.take(4)?;
        Ok(u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(self.u32()? | self.u32()? << 32)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
