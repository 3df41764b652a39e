//! The files of `tests/vectors/qpack/qifs.tar.zst`.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::LazyLock;

/// A section: its lines in order.
pub(crate) type List = Vec<(Vec<u8>, Vec<u8>)>;

static FILES: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let compressed = &include_bytes!("../vectors/qpack/qifs.tar.zst")[..];
    let mut tar = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(compressed)
        .expect("the archive")
        .read_to_end(&mut tar)
        .expect("the whole archive");
    untar(&tar)
});

/// The files of a tar archive in the ustar format.
fn untar(mut rest: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    while let Some((header, after)) = rest.split_at_checked(512)
        && header[0] != 0
    {
        let text = |field: &[u8]| {
            let end = field.iter().position(|byte| *byte == 0);
            String::from_utf8(field[..end.unwrap_or(field.len())].to_vec()).expect("text")
        };
        let size = usize::from_str_radix(text(&header[124..136]).trim(), 8).expect("a size");
        if header[156] == b'0' {
            files.insert(text(&header[..100]), after[..size].to_vec());
        }
        rest = &after[size.next_multiple_of(512)..];
    }
    files
}

/// All files whose names begin with `folder`, without it.
pub(crate) fn files(folder: &str) -> impl Iterator<Item = (&'static str, &'static [u8])> {
    FILES
        .iter()
        .filter_map(move |(name, data)| Some((name.strip_prefix(folder)?, &data[..])))
}

/// The sections of a list.
pub(crate) fn qif(name: &str) -> Vec<List> {
    let mut sections = Vec::new();
    let mut section = List::new();
    for line in FILES[&format!("qifs/{name}.qif")].split(|byte| *byte == b'\n') {
        if line.starts_with(b"#") {
            continue;
        }
        if line.is_empty() {
            if !section.is_empty() {
                sections.push(std::mem::take(&mut section));
            }
            continue;
        }
        let tab = line.iter().position(|byte| *byte == b'\t').expect("a tab");
        section.push((line[..tab].to_vec(), line[tab + 1..].to_vec()));
    }
    sections
}

/// The blocks of an encoded file: stream ids, and what was sent on them.
pub(crate) fn blocks(mut file: &[u8]) -> Vec<(u64, &[u8])> {
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let (stream_id, rest) = file.split_first_chunk().expect("a stream id");
        let (len, rest) = rest.split_first_chunk().expect("a length");
        let (block, rest) = rest.split_at(u32::from_be_bytes(*len) as usize);
        blocks.push((u64::from_be_bytes(*stream_id), block));
        file = rest;
    }
    blocks
}
