//! Encoded field sections: RFC 9204 §4.5.

use super::field::{Draft, DraftName, FieldSection, Rejected};
use super::huffman::InvalidHuffman;
use super::integer::{self, IntegerError};
use super::static_table;
use super::string::{Literal, StringError};
use super::table::Table;

impl From<IntegerError> for Rejected {
    fn from(_: IntegerError) -> Self {
        Self::Invalid
    }
}

impl From<StringError> for Rejected {
    fn from(error: StringError) -> Self {
        match error {
            StringError::Truncated | StringError::Length => Self::Invalid,
            StringError::TooLong => Self::TooLarge,
        }
    }
}

impl From<InvalidHuffman> for Rejected {
    fn from(_: InvalidHuffman) -> Self {
        Self::Invalid
    }
}

/// The two numbers at the start of a section, as encoded.
pub(super) struct Prefix {
    pub(super) encoded_insert_count: u64,
    sign: bool,
    delta_base: u64,
}

impl Prefix {
    /// Reads the prefix at the front of a section, and advances the section.
    #[inline]
    pub(super) fn read(section: &mut &[u8]) -> Result<Self, Rejected> {
        let first = read_u8(section)?;
        let encoded_insert_count = integer::read::<8>(first, section)?;
        let first = read_u8(section)?;
        Ok(Self {
            encoded_insert_count,
            sign: first & 0x80 != 0,
            delta_base: integer::read::<7>(first, section)?,
        })
    }

    /// The Base (RFC 9204 §4.5.1.2).
    #[inline]
    pub(super) fn base(&self, required: u64) -> Result<u64, Rejected> {
        let base = if self.sign {
            // Not negative.
            required
                .checked_sub(self.delta_base)
                .and_then(|base| base.checked_sub(1))
        } else {
            required.checked_add(self.delta_base)
        };
        base.ok_or(Rejected::Invalid)
    }
}

#[inline]
fn read_u8(rest: &mut &[u8]) -> Result<u8, Rejected> {
    let (first, after) = rest.split_first().ok_or(Rejected::Invalid)?;
    *rest = after;
    Ok(*first)
}

/// The Required Insert Count (RFC 9204 §4.5.1.1), which is encoded modulo twice the number of
/// entries that the table can have.
pub(super) fn required_insert_count(
    encoded: u64,
    max_entries: u64,
    insert_count: u64,
) -> Option<u64> {
    if encoded == 0 {
        return Some(0);
    }
    let full_range = 2 * max_entries;
    if encoded > full_range {
        return None;
    }
    let max_value = insert_count + max_entries;
    let max_wrapped = max_value / full_range * full_range;
    let mut required = max_wrapped + encoded - 1;
    if required > max_value {
        required = required.checked_sub(full_range)?;
    }
    (required > 0).then_some(required)
}

/// Decodes the lines of a section, with what they refer to.
pub(super) struct Lines<'a> {
    pub(super) table: &'a Table,
    pub(super) required: u64,
    pub(super) base: u64,
    /// The largest size of the decoded section.
    pub(super) limit: usize,
}

impl Lines<'_> {
    /// Decodes all of them.
    pub(super) fn decode(&self, mut rest: &[u8], out: &mut FieldSection) -> Result<(), Rejected> {
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            let first = *first;
            if first & 0x80 != 0 {
                let index = integer::read::<6>(first, &mut rest)?;
                if first & 0x40 != 0 {
                    // A number that does not fit is no index of the static table either.
                    out.push_static(usize::try_from(index).unwrap_or(usize::MAX), self.limit)?;
                } else {
                    self.indexed(self.relative(index)?, out)?;
                }
            } else if first & 0x40 != 0 {
                let index = integer::read::<4>(first, &mut rest)?;
                let never_indexed = first & 0x20 != 0;
                if first & 0x10 != 0 {
                    self.static_name(index, never_indexed, &mut rest, out)?;
                } else {
                    self.dynamic_name(self.relative(index)?, never_indexed, &mut rest, out)?;
                }
            } else if first & 0x20 != 0 {
                self.literal_name(first, &mut rest, out)?;
            } else if first & 0x10 != 0 {
                let index = integer::read::<4>(first, &mut rest)?;
                self.indexed(self.post_base(index)?, out)?;
            } else {
                let index = integer::read::<3>(first, &mut rest)?;
                let never_indexed = first & 0x08 != 0;
                self.dynamic_name(self.post_base(index)?, never_indexed, &mut rest, out)?;
            }
        }
        Ok(())
    }

    /// The absolute index of an entry before the Base.
    #[inline]
    fn relative(&self, index: u64) -> Result<u64, Rejected> {
        let absolute = self
            .base
            .checked_sub(index)
            .and_then(|next| next.checked_sub(1));
        self.within(absolute)
    }

    /// The absolute index of an entry at the Base or after it.
    #[inline]
    fn post_base(&self, index: u64) -> Result<u64, Rejected> {
        self.within(self.base.checked_add(index))
    }

    /// RFC 9204 §2.2.3: references must be below the section's Required Insert Count.
    #[inline]
    fn within(&self, absolute: Option<u64>) -> Result<u64, Rejected> {
        absolute
            .filter(|absolute| *absolute < self.required)
            .ok_or(Rejected::Invalid)
    }

    /// An entry of the dynamic table.
    fn indexed(&self, absolute: u64, out: &mut FieldSection) -> Result<(), Rejected> {
        let entry = self.table.get(absolute).ok_or(Rejected::Invalid)?;
        // Checked before copying: an entry can be long, and a reference to it takes a byte.
        if entry.name.len() + entry.value.len() > out.room(self.limit) {
            return Err(Rejected::TooLarge);
        }
        let text = out.text_mut();
        let start = text.len();
        text.extend_from_slice(entry.name);
        text.extend_from_slice(entry.value);
        let draft = Draft {
            start,
            name: DraftName::Text {
                len: entry.name.len(),
            },
            static_name: entry.static_name,
            never_indexed: false,
        };
        out.finish(draft, self.limit)
    }

    /// A value with a name of the static table.
    #[inline]
    fn static_name(
        &self,
        index: u64,
        never_indexed: bool,
        rest: &mut &[u8],
        out: &mut FieldSection,
    ) -> Result<(), Rejected> {
        let index = usize::try_from(index).map_err(|_| Rejected::Invalid)?;
        let (name, _) = static_table::get(index).ok_or(Rejected::Invalid)?;
        let start = out.text_mut().len();
        self.value(rest, out)?;
        let draft = Draft {
            start,
            name: DraftName::Static { len: name.len() },
            static_name: static_table::canonical_index(index),
            never_indexed,
        };
        out.finish(draft, self.limit)
    }

    /// A value with a name of the dynamic table.
    fn dynamic_name(
        &self,
        absolute: u64,
        never_indexed: bool,
        rest: &mut &[u8],
        out: &mut FieldSection,
    ) -> Result<(), Rejected> {
        let entry = self.table.get(absolute).ok_or(Rejected::Invalid)?;
        if entry.name.len() > out.room(self.limit) {
            return Err(Rejected::TooLarge);
        }
        let text = out.text_mut();
        let start = text.len();
        text.extend_from_slice(entry.name);
        self.value(rest, out)?;
        let draft = Draft {
            start,
            name: DraftName::Text {
                len: entry.name.len(),
            },
            static_name: entry.static_name,
            never_indexed,
        };
        out.finish(draft, self.limit)
    }

    /// A value with its name.
    fn literal_name(
        &self,
        first: u8,
        rest: &mut &[u8],
        out: &mut FieldSection,
    ) -> Result<(), Rejected> {
        let name = Literal::read::<3>(first, rest, out.room(self.limit))?;
        let text = out.text_mut();
        let start = text.len();
        name.append_to(text)?;
        let len = text.len() - start;
        self.value(rest, out)?;
        let draft = Draft {
            start,
            name: DraftName::Text { len },
            static_name: None,
            never_indexed: first & 0x10 != 0,
        };
        out.finish(draft, self.limit)
    }

    #[inline]
    fn value(&self, rest: &mut &[u8], out: &mut FieldSection) -> Result<(), Rejected> {
        let first = read_u8(rest)?;
        let value = Literal::read::<7>(first, rest, out.room(self.limit))?;
        Ok(value.append_to(out.text_mut())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_required_insert_count_wraps() {
        // test: RFC 9204 §4.5.1.1, its example: a table of 100 bytes, 10 inserts
        assert_eq!(required_insert_count(4, 3, 10), Some(9));
        for max_entries in [1, 2, 3, 7, 128u64] {
            for insert_count in 0..5 * max_entries {
                // The counts that an encoder can use: entries are in the table, or will be.
                let lowest = (insert_count + 1).saturating_sub(max_entries).max(1);
                for required in lowest..=insert_count + max_entries {
                    let encoded = required % (2 * max_entries) + 1;
                    let decoded = required_insert_count(encoded, max_entries, insert_count);
                    assert_eq!(decoded, Some(required));
                }
                assert_eq!(required_insert_count(0, max_entries, insert_count), Some(0));
                let beyond = 2 * max_entries + 1;
                assert_eq!(
                    required_insert_count(beyond, max_entries, insert_count),
                    None
                );
            }
            // A count of 0 has one encoding.
            assert_eq!(required_insert_count(1, max_entries, 0), None);
        }
        assert_eq!(required_insert_count(1, 0, 0), None);
    }
}
