//! The encoder: RFC 9204 §2.1.
//!
//! Which lines enter the dynamic table, and which leave it:
//!
//! - A line is inserted when it occurs for the second time within about a hundred lines. Lines
//!   whose values naturally change with each message, such as `:path` and `date`, never are.
//! - To make room, entries are evicted that have been idle for longer than the time between the two
//!   occurrences. If more lines recur than the table can hold, the present ones stay and remain
//!   useful, instead of every line pushing out the next one.
//! - An entry that is used while it is about to be evicted is duplicated, so that unused ones after
//!   it can go.
//! - Entries that the decoder has not acknowledged are referenced only if the peer allows blocked
//!   streams, and on no more streams than it allows.
//!
//! Entries leave in order of age. So an entry is in use unless it is older than the oldest entry
//! that an outstanding section refers to, and that entry is all a section has to remember.

use super::field::{Field, LINE_OVERHEAD};
use super::index::{self, Found, Index};
use super::instruction::{DecoderInstruction, InstructionError};
use super::integer;
use super::recent::Recent;
use super::representation::{self, Name};
use super::static_table;
use super::string;
use super::table::{SMALLEST_ENTRY, Table};
use crate::error::Code;
use std::collections::VecDeque;

/// Sections with references to the dynamic table that may wait for their acknowledgement. Beyond
/// that, lines are encoded without the dynamic table. Cancelling a stream that has none, which
/// takes a byte, scans all of them in 130 ns.
const MAX_OUTSTANDING_SECTIONS: usize = 256;

/// How many entries after the oldest are searched for one that is not in use.
const NEXT_OLDEST: usize = 8;

/// Lines that are not inserted, by the first static index of their name: their values are new in
/// nearly every message, or say where a message belongs.
const CHANGING: u128 = bits(&[
    1,  // :path
    2,  // age
    4,  // content-length
    6,  // date
    7,  // etag
    8,  // if-modified-since
    9,  // if-none-match
    10, // last-modified
    12, // location
    14, // set-cookie
    55, // range
    89, // if-range
]);

const fn bits(indices: &[u8]) -> u128 {
    let (mut bits, mut at) = (0, 0);
    while at < indices.len() {
        bits |= 1 << indices[at];
        at += 1;
    }
    bits
}

/// A section that has not been acknowledged.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    stream_id: u64,
    /// Its Required Insert Count.
    required: u64,
    /// The oldest entry that it refers to.
    oldest: u64,
}

/// A section that is being encoded.
struct Draft {
    stream_id: u64,
    base: u64,
    required: u64,
    oldest: u64,
    /// Whether it may refer to entries that are not acknowledged; `None` until that matters.
    may_block: Option<bool>,
}

/// Encodes the field sections of a connection.
#[derive(Debug, Default)]
pub struct Encoder {
    table: Table,
    index: Index,
    recent: Recent,
    /// Number of lines looked up in the dynamic table.
    now: u32,
    /// The most entries that the decoder's table can have: the encoding of counts depends on it.
    max_entries: u64,
    /// The capacity that this encoder uses; 0 without a dynamic table.
    capacity: usize,
    max_blocked_streams: u64,
    known_received: u64,
    outstanding: VecDeque<Outstanding>,
    /// Whether the most recently encoded section is the last of `outstanding`.
    last_refers: bool,
    instructions: Vec<u8>,
    /// The beginning of an incomplete instruction from the decoder.
    partial: Vec<u8>,
}

impl Encoder {
    /// An encoder that uses only the static table, until [`set_limits`](Self::set_limits).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the peer's SETTINGS_QPACK_MAX_TABLE_CAPACITY and SETTINGS_QPACK_BLOCKED_STREAMS (RFC
    /// 9204 §5), and how many bytes of table this end is willing to use. If no streams may block,
    /// an entry is used only once acknowledged, and no loss can delay a section.
    ///
    /// Once the table is in use its capacity is fixed: a peer may not change the settings that it
    /// gave for 0-RTT.
    pub fn set_limits(
        &mut self,
        peer_max_table_capacity: u64,
        peer_max_blocked_streams: u64,
        own_max_table_capacity: usize,
    ) {
        self.max_blocked_streams = peer_max_blocked_streams;
        if self.capacity > 0 {
            return;
        }
        let peer = usize::try_from(peer_max_table_capacity).unwrap_or(usize::MAX);
        let capacity = peer.min(own_max_table_capacity);
        // A table without room for a useful entry is not worth a stream.
        if capacity < 2 * SMALLEST_ENTRY {
            return;
        }
        self.max_entries = peer_max_table_capacity / SMALLEST_ENTRY as u64;
        self.capacity = capacity;
        self.index = Index::new(capacity);
    }

    /// Appends `fields` to `out` as a section for this stream. Instructions that it depends on may
    /// have been added to [`instructions`](Self::instructions), and are best sent before it.
    pub fn encode<'a>(
        &mut self,
        stream_id: u64,
        fields: impl Iterator<Item = Field<'a>>,
        out: &mut Vec<u8>,
    ) {
        self.last_refers = false;
        if self.capacity == 0 || self.outstanding.len() >= MAX_OUTSTANDING_SECTIONS {
            representation::encode_static(fields, out);
            return;
        }
        let start = out.len();
        // The usual length of the prefix.
        out.extend_from_slice(&[0, 0]);
        let mut draft = Draft {
            stream_id,
            base: self.table.insert_count(),
            required: 0,
            oldest: u64::MAX,
            may_block: None,
        };
        for field in fields {
            self.encode_line(&field, &mut draft, out);
        }
        if draft.required > 0 {
            self.write_prefix(&draft, start, out);
            self.last_refers = true;
            self.outstanding.push_back(Outstanding {
                stream_id,
                required: draft.required,
                oldest: draft.oldest,
            });
        }
    }

    /// Withdraws the section that was just encoded, which is not sent: it will not be acknowledged,
    /// and the entries that it refers to may be evicted. Call this before anything else.
    ///
    /// Do not call it for a partly sent section, or a stream that is reset: the receiver
    /// acknowledges or cancels it (RFC 9204 §2.2.2.2), and may need its entries until then.
    pub fn withdraw(&mut self) {
        if std::mem::take(&mut self.last_refers) {
            self.outstanding.pop_back();
        }
    }

    fn encode_line(&mut self, field: &Field<'_>, draft: &mut Draft, out: &mut Vec<u8>) {
        let static_name = static_table::find_name(field.name);
        if representation::never_indexed(field, static_name) {
            let name = Name::of(field.name, static_name);
            representation::write_literal(name, field.value, true, out);
            return;
        }
        if let Some(first) = static_name {
            if let Some(index) = static_table::find_value(first, field.value) {
                representation::write_static(index, out);
                return;
            }
            if CHANGING & 1 << first != 0 {
                representation::write_literal(Name::Static(first), field.value, false, out);
                return;
            }
        }
        let name_hash = index::hash_name(field.name, static_name);
        match self.dynamic_line(field, static_name, name_hash, draft) {
            Some(absolute) => representation::write_dynamic(absolute, draft.base, out),
            None => {
                let name = match static_name {
                    Some(first) => Name::Static(first),
                    None => self.dynamic_name(field.name, name_hash, draft),
                };
                representation::write_literal(name, field.value, false, out);
            }
        }
    }

    /// The entry for a line, which may have been inserted for it.
    fn dynamic_line(
        &mut self,
        field: &Field<'_>,
        static_name: Option<u8>,
        name_hash: u64,
        draft: &mut Draft,
    ) -> Option<u64> {
        let hash = index::hash_line(name_hash, field.value);
        self.now = self.now.wrapping_add(1);
        let size = field.name.len() + field.value.len() + LINE_OVERHEAD;
        let usable = self.usable_below(draft);
        let Some(found) = self.find_line(field.name, field.value, hash, usable) else {
            // A longer entry would push out most others.
            if size > self.capacity / 2 {
                return None;
            }
            let distance = self.recent.replace(hash, self.now)?;
            if !self.has_room(size, distance, draft.oldest) {
                self.renew_oldest(distance, draft.oldest);
                return None;
            }
            let absolute = self.insert(field, static_name, name_hash, hash)?;
            return self.refer(absolute, draft);
        };
        let absolute = found.usable?;
        let distance = self.index.touch(absolute, self.now);
        let absolute = self.refer(absolute, draft)?;
        if found.newest == absolute
            && self.is_draining(absolute, size)
            && self.has_room(size, distance, draft.oldest)
        {
            self.duplicate(absolute, size, name_hash, hash);
        }
        Some(absolute)
    }

    /// The first entry that the section may not refer to.
    fn usable_below(&self, draft: &mut Draft) -> u64 {
        let insert_count = self.table.insert_count();
        if insert_count == self.known_received || !self.may_block(draft) {
            self.known_received
        } else {
            insert_count
        }
    }

    /// Whether the section may refer to entries that its decoder may lack.
    fn may_block(&self, draft: &mut Draft) -> bool {
        if self.max_blocked_streams == 0 {
            return false;
        }
        *draft.may_block.get_or_insert_with(|| {
            // Streams that may be blocked now; one with two sections counts twice.
            let mut count = 0;
            for section in &self.outstanding {
                if section.required > self.known_received {
                    if section.stream_id == draft.stream_id {
                        return true;
                    }
                    count += 1;
                }
            }
            count < self.max_blocked_streams
        })
    }

    /// Records a reference, if the section may make it.
    fn refer(&self, absolute: u64, draft: &mut Draft) -> Option<u64> {
        if absolute >= self.known_received && !self.may_block(draft) {
            return None;
        }
        draft.required = draft.required.max(absolute + 1);
        draft.oldest = draft.oldest.min(absolute);
        Some(absolute)
    }

    /// A name for a literal, from the dynamic table if it is there.
    fn dynamic_name<'a>(&self, name: &'a [u8], hash: u64, draft: &mut Draft) -> Name<'a> {
        let usable = self.usable_below(draft);
        let found = self.find_name(name, hash, usable);
        match found.and_then(|absolute| self.refer(absolute, draft)) {
            Some(absolute) => Name::Dynamic {
                absolute,
                base: draft.base,
            },
            None => Name::Literal(name),
        }
    }

    fn find_line(&self, name: &[u8], value: &[u8], hash: u64, usable: u64) -> Option<Found> {
        self.index.find_line(hash, usable, |absolute| {
            self.table
                .get(absolute)
                .is_some_and(|entry| entry.name == name && entry.value == value)
        })
    }

    fn find_name(&self, name: &[u8], hash: u64, usable: u64) -> Option<u64> {
        self.index.find_name(hash, usable, |absolute| {
            self.table
                .get(absolute)
                .is_some_and(|entry| entry.name == name)
        })
    }

    /// Whether an entry of this size can be inserted, for a line that recurs every `distance`
    /// lines. Only entries may be evicted that have been idle for longer than that, that the
    /// decoder is known to have, and that nothing refers to. `referenced` is the oldest entry that
    /// the section being encoded refers to.
    fn has_room(&self, size: usize, distance: u32, referenced: u64) -> bool {
        let mut room = self.capacity - self.table.size();
        if room >= size {
            return true;
        }
        let mut evictable = None;
        for (absolute, meta) in self.index.iter() {
            if self.now.wrapping_sub(meta.last_used) <= distance {
                return false;
            }
            if absolute >= *evictable.get_or_insert_with(|| self.evictable_below(referenced)) {
                return false;
            }
            room += meta.size;
            if room >= size {
                return true;
            }
        }
        false
    }

    /// The oldest entry that the decoder may lack, or that a section refers to.
    fn evictable_below(&self, referenced: u64) -> u64 {
        let outstanding = self.outstanding.iter().map(|section| section.oldest);
        let oldest = outstanding.min().unwrap_or(u64::MAX);
        oldest.min(referenced).min(self.known_received)
    }

    /// Inserts a line; there is room for it.
    fn insert(
        &mut self,
        field: &Field<'_>,
        static_name: Option<u8>,
        name_hash: u64,
        hash: u64,
    ) -> Option<u64> {
        self.set_capacity();
        let absolute = self.table.insert_count();
        let same_name = match static_name {
            Some(_) => None,
            None => self.find_name(field.name, name_hash, u64::MAX),
        };
        let out = &mut self.instructions;
        match (static_name, same_name) {
            (Some(first), _) => integer::write::<6>(0xc0, u64::from(first), out),
            (None, Some(same)) => integer::write::<6>(0x80, absolute - 1 - same, out),
            (None, None) => string::write::<5>(0x40, field.name, out),
        }
        string::write::<7>(0, field.value, out);
        let text = self.table.begin();
        text.extend_from_slice(field.name);
        text.extend_from_slice(field.value);
        let evicted = self.table.insert(field.name.len(), static_name).ok()?;
        self.index.evict(evicted);
        let size = field.name.len() + field.value.len() + LINE_OVERHEAD;
        self.index.insert(name_hash, hash, size, self.now);
        Some(absolute)
    }

    /// Tells the decoder the capacity, before the first entry.
    fn set_capacity(&mut self) {
        if self.table.capacity() == 0 {
            self.table.set_capacity(self.capacity);
            integer::write::<5>(0x20, self.capacity as u64, &mut self.instructions);
        }
    }

    /// Whether an entry of this size is among the next to be evicted (RFC 9204 §2.1.1.1): it is
    /// copied while there is room for the copy.
    fn is_draining(&self, absolute: u64, size: usize) -> bool {
        let unused = self.capacity - self.table.size();
        let soon = (self.capacity / 4).max(3 * size);
        unused as u64 + self.index.bytes_to(absolute) <= soon as u64
    }

    /// Duplicates an entry, for which there is room, so that its line survives the eviction.
    fn duplicate(&mut self, absolute: u64, size: usize, name_hash: u64, hash: u64) {
        let relative = self.table.insert_count() - 1 - absolute;
        if let Some(evicted) = self.table.duplicate(absolute) {
            integer::write::<5>(0, relative, &mut self.instructions);
            self.index.evict(evicted);
            self.index.insert(name_hash, hash, size, self.now);
        }
    }

    /// If nothing can be evicted because the oldest entry is in use, while one of those after it is
    /// idle: copies the oldest to be the newest. That evicts the original, and the copy is useful
    /// once it is acknowledged.
    fn renew_oldest(&mut self, distance: u32, referenced: u64) {
        let mut next = self.index.iter();
        let idle = |age: u32| age > distance;
        let Some((absolute, oldest)) = next.next() else {
            return;
        };
        let age = |last_used: u32| self.now.wrapping_sub(last_used);
        if idle(age(oldest.last_used))
            || !next
                .take(NEXT_OLDEST)
                .any(|(_, meta)| idle(age(meta.last_used)))
            || absolute >= self.evictable_below(referenced)
        {
            return;
        }
        let Some(entry) = self.table.get(absolute) else {
            return;
        };
        let name_hash = index::hash_name(entry.name, entry.static_name);
        let hash = index::hash_line(name_hash, entry.value);
        let newest = self.find_line(entry.name, entry.value, hash, 0);
        // A copy may already be waiting for its acknowledgement.
        if newest.is_some_and(|found| found.newest == absolute) {
            let size = oldest.size;
            self.duplicate(absolute, size, name_hash, hash);
        }
    }

    /// Writes the prefix of a section at `start`, where two bytes are reserved for it.
    fn write_prefix(&self, draft: &Draft, start: usize, out: &mut Vec<u8>) {
        let end = out.len();
        let encoded = draft.required % (2 * self.max_entries) + 1;
        integer::write::<8>(0, encoded, out);
        if draft.base >= draft.required {
            integer::write::<7>(0, draft.base - draft.required, out);
        } else {
            integer::write::<7>(0x80, draft.required - draft.base - 1, out);
        }
        // At this point the prefix follows the lines.
        let mut prefix = [0; 24];
        let len = out.len() - end;
        for (to, from) in prefix.iter_mut().zip(out.drain(end..)) {
            *to = from;
        }
        if let (2, Some(place)) = (len, out.get_mut(start..start + 2)) {
            place.copy_from_slice(prefix.get(..2).unwrap_or_default());
        } else {
            out.splice(start..start + 2, prefix.into_iter().take(len));
        }
    }

    /// Processes data from the decoder stream.
    ///
    /// # Errors
    /// `QPACK_DECODER_STREAM_ERROR`: close the connection with it.
    pub fn on_decoder_stream(&mut self, data: &[u8]) -> Result<(), Code> {
        if self.partial.is_empty() {
            let rest = self.follow(data)?;
            self.partial.extend_from_slice(rest);
            return Ok(());
        }
        let mut rest = data;
        while !self.partial.is_empty()
            && let Some((next, after)) = rest.split_first()
        {
            // An instruction is complete or invalid after ten bytes.
            debug_assert!(self.partial.len() < DecoderInstruction::LONGEST);
            self.partial.push(*next);
            rest = after;
            let partial = std::mem::take(&mut self.partial);
            let left = self.follow(&partial)?.len();
            if left > 0 {
                self.partial = partial;
            }
        }
        let rest = self.follow(rest)?;
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// Executes all complete instructions, and returns the rest.
    fn follow<'a>(&mut self, mut input: &'a [u8]) -> Result<&'a [u8], Code> {
        while !input.is_empty() {
            let done = match DecoderInstruction::read(&mut input) {
                Ok(instruction) => self.apply(instruction),
                Err(InstructionError::Truncated) => return Ok(input),
                Err(InstructionError::Invalid) => None,
            };
            done.ok_or(Code::QPACK_DECODER_STREAM_ERROR)?;
        }
        Ok(input)
    }

    /// `None` if the instruction is invalid.
    fn apply(&mut self, instruction: DecoderInstruction) -> Option<()> {
        match instruction {
            DecoderInstruction::SectionAcknowledgment { stream_id } => {
                // The earliest section of the stream (RFC 9204 §2.2.2.1).
                let at = self
                    .outstanding
                    .iter()
                    .position(|section| section.stream_id == stream_id)?;
                let section = self.outstanding.remove(at)?;
                self.known_received = self.known_received.max(section.required);
            }
            DecoderInstruction::StreamCancellation { stream_id } => {
                let is_of = |section: &Outstanding| section.stream_id == stream_id;
                if self.outstanding.iter().any(is_of) {
                    self.outstanding.retain(|section| !is_of(section));
                }
            }
            DecoderInstruction::InsertCountIncrement(increment) => {
                let known = self.known_received.checked_add(increment)?;
                if increment == 0 || known > self.table.insert_count() {
                    return None;
                }
                self.known_received = known;
            }
        }
        Some(())
    }

    /// Data to send on the encoder stream; the caller removes what it has sent.
    ///
    /// It never exceeds the size of the entries of one table, since entries that the decoder has
    /// not acknowledged are not evicted.
    pub fn instructions(&mut self) -> &mut Vec<u8> {
        &mut self.instructions
    }
}
