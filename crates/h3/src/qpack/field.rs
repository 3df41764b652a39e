//! Fields to be encoded, and decoded field sections.

use super::static_table;
use std::ops::Range;

/// A field line to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, in lowercase.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether the value must not enter a dynamic table, here or at an intermediary: it is encoded
    /// as a never-indexed literal (RFC 9204 §7.1.3).
    pub sensitive: bool,
}

impl<'a> Field<'a> {
    /// A field line that is not sensitive.
    #[must_use]
    pub const fn new(name: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            name,
            value,
            sensitive: false,
        }
    }
}

/// A decoded field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'a> {
    /// The name, as it arrived.
    pub name: &'a [u8],
    /// The value, as it arrived.
    pub value: &'a [u8],
    /// The first entry of the static table that has this name, if the encoder referred to it; the
    /// name is not searched for.
    pub static_name: Option<u8>,
    /// The entry of the static table that is this whole line, if the encoder referred to it.
    pub static_line: Option<u8>,
    /// Whether the line must stay a literal when it is forwarded (RFC 9204 §4.5.4).
    pub never_indexed: bool,
    /// Where the value starts in [`FieldSection::text`]; 0 for a line of the static table.
    value_start: usize,
}

impl FieldLine<'_> {
    /// Where the value lies in [`FieldSection::text`], unless it is in the static table.
    #[must_use]
    pub fn value_range(&self) -> Option<Range<usize>> {
        let range = self.value_start..self.value_start + self.value.len();
        self.static_line.is_none().then_some(range)
    }
}

/// Not the index of any entry of the static table.
const NONE: u8 = u8::MAX;

/// Where a line lies.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// Start of the name in the text, or of the value if the name is in the static table.
    start: u32,
    name_len: u32,
    value_len: u32,
    static_name: u8,
    static_line: u8,
    /// Whether the name is in the text although it is in the static table as well.
    name_in_text: bool,
    never_indexed: bool,
}

/// A decoded field section. It keeps its memory for reuse.
#[derive(Debug, Default)]
pub struct FieldSection {
    text: Vec<u8>,
    lines: Vec<Line>,
    size: usize,
}

/// Bytes that each line counts in addition to its name and its value.
///
/// RFC 9114 §4.2.2 for sections, RFC 9204 §3.2.1 for entries.
pub(super) const LINE_OVERHEAD: usize = 32;

impl FieldSection {
    /// An empty section.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            text: Vec::new(),
            lines: Vec::new(),
            size: 0,
        }
    }

    /// Removes all lines.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
        self.size = 0;
    }

    /// The number of lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The size that limits apply to: for each line, the bytes of name and value plus 32 (RFC 9114
    /// §4.2.2).
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// All names and values that are not in the static table, one after the other. A caller that
    /// keeps the values copies this once and slices it by [`FieldLine::value_range`].
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Length of [`text`](Self::text) in bytes.
    #[must_use]
    pub fn text_len(&self) -> usize {
        self.text.len()
    }

    /// The lines in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FieldLine<'_>> {
        self.lines.iter().map(|line| self.line(line))
    }

    #[inline]
    fn line(&self, line: &Line) -> FieldLine<'_> {
        let static_name = (line.static_name != NONE).then_some(line.static_name);
        let static_line = (line.static_line != NONE).then_some(line.static_line);
        let in_table = |index: Option<u8>| {
            static_table::get(usize::from(index.unwrap_or(NONE))).unwrap_or_default()
        };
        let (name, value, value_start) = if static_line.is_some() {
            let (name, value) = in_table(static_line);
            (name, value, 0)
        } else {
            let start = line.start as usize;
            let (name, value_start) = if line.name_in_text {
                let end = start + line.name_len as usize;
                (self.text.get(start..end).unwrap_or_default(), end)
            } else {
                (in_table(static_name).0, start)
            };
            let value = self
                .text
                .get(value_start..value_start + line.value_len as usize)
                .unwrap_or_default();
            (name, value, value_start)
        };
        FieldLine {
            name,
            value,
            static_name,
            static_line,
            never_indexed: line.never_indexed,
            value_start,
        }
    }

    /// Adds an entry of the static table.
    #[inline]
    pub(super) fn push_static(&mut self, index: usize, limit: usize) -> Result<(), Rejected> {
        let (name, value) = static_table::get(index).ok_or(Rejected::Invalid)?;
        self.count(name.len() + value.len(), limit)?;
        self.lines.push(Line {
            start: 0,
            name_len: 0,
            value_len: 0,
            static_name: static_table::canonical_index(index).unwrap_or(NONE),
            static_line: index as u8,
            name_in_text: false,
            never_indexed: false,
        });
        Ok(())
    }

    /// Counts a line.
    #[inline]
    fn count(&mut self, len: usize, limit: usize) -> Result<(), Rejected> {
        let size = self.size + LINE_OVERHEAD + len;
        if size > limit {
            return Err(Rejected::TooLarge);
        }
        self.size = size;
        Ok(())
    }

    /// The room that a further line has for its name and value.
    #[inline]
    pub(super) fn room(&self, limit: usize) -> usize {
        limit.saturating_sub(self.size + LINE_OVERHEAD)
    }

    /// The text, to which the name and the value of the next line are appended. `finish` then makes
    /// them a line.
    #[inline]
    pub(super) fn text_mut(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    /// Adds a line whose text begins at `draft.start`.
    #[inline]
    pub(super) fn finish(&mut self, draft: Draft, limit: usize) -> Result<(), Rejected> {
        let in_text = self.text.len() - draft.start;
        let (name_in_text, name_len, value_len) = match draft.name {
            DraftName::Text { len } => (true, len, in_text - len),
            DraftName::Static { len } => (false, len, in_text),
        };
        self.count(name_len + value_len, limit)?;
        // Lengths are below a limit that fits, and the text is as long as all of them together.
        let narrow = |value: usize| u32::try_from(value).map_err(|_| Rejected::TooLarge);
        self.lines.push(Line {
            start: narrow(draft.start)?,
            name_len: narrow(name_len)?,
            value_len: narrow(value_len)?,
            static_name: draft.static_name.unwrap_or(NONE),
            static_line: NONE,
            name_in_text,
            never_indexed: draft.never_indexed,
        });
        Ok(())
    }
}

/// Why a line was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// It is invalid.
    Invalid,
    /// The section would exceed its limit.
    TooLarge,
}

/// A line whose text has been appended.
#[derive(Clone, Copy)]
pub(super) struct Draft {
    /// Where its text begins.
    pub(super) start: usize,
    pub(super) name: DraftName,
    /// The first index of its name in the static table, if known.
    pub(super) static_name: Option<u8>,
    pub(super) never_indexed: bool,
}

/// Where the name of a line is, and its length.
#[derive(Clone, Copy)]
pub(super) enum DraftName {
    /// In the text, before the value.
    Text { len: usize },
    /// In the static table, at `static_name`.
    Static { len: usize },
}
