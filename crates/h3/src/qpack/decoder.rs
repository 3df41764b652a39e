//! The decoder: RFC 9204 §2.2.

use super::field::{FieldSection, Rejected};
use super::instruction::{DecoderInstruction, EncoderInstruction, InstructionError};
use super::section::{self, Lines, Prefix};
use super::static_table;
use super::table::{SMALLEST_ENTRY, Table};
use crate::error::Code;

/// The outcome of decoding a field section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All its lines are in the [`FieldSection`].
    Done,
    /// It refers to entries that have not arrived. Decode it again when
    /// [`Decoder::on_encoder_stream`] returns `true`; the stream counts as blocked until then.
    Blocked,
}

/// Why a field section could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Close the connection with this code.
    Connection(Code),
    /// It is larger than the limit. The rest of it was not decoded; the encoder is told that it was
    /// processed, since it will not be decoded again.
    TooLarge,
}

/// A section that waits for entries.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    stream_id: u64,
    required: u64,
}

/// Decodes the field sections of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    max_capacity: usize,
    max_blocked_streams: usize,
    blocked: Vec<Blocked>,
    /// Inserts that the encoder knows to have arrived, once it has `instructions`.
    known_received: u64,
    /// The beginning of an instruction whose rest has not arrived.
    partial: Vec<u8>,
    instructions: Vec<u8>,
}

const FAILED: DecodeError = DecodeError::Connection(Code::QPACK_DECOMPRESSION_FAILED);

impl Decoder {
    /// A decoder with this end's SETTINGS_QPACK_MAX_TABLE_CAPACITY, in bytes, and
    /// SETTINGS_QPACK_BLOCKED_STREAMS (RFC 9204 §5).
    ///
    /// It uses at most about ten times the capacity in memory: twice for the table, and eight times
    /// for a partly received instruction in Huffman code. Its time also depends on the capacity: a
    /// duplicate, which takes a byte, copies an entry.
    #[must_use]
    pub fn new(max_table_capacity: usize, max_blocked_streams: usize) -> Self {
        Self {
            table: Table::default(),
            max_capacity: max_table_capacity,
            max_blocked_streams,
            blocked: Vec::new(),
            known_received: 0,
            partial: Vec::new(),
            instructions: Vec::new(),
        }
    }

    /// Processes data from the encoder stream. Returns whether there are new entries, so that
    /// blocked sections may have become decodable.
    ///
    /// # Errors
    /// `QPACK_ENCODER_STREAM_ERROR`: close the connection with it.
    pub fn on_encoder_stream(&mut self, data: &[u8]) -> Result<bool, Code> {
        let before = self.table.insert_count();
        if self.partial.is_empty() {
            let rest = self.follow(data)?;
            self.partial.extend_from_slice(rest);
        } else {
            let mut input = std::mem::take(&mut self.partial);
            input.extend_from_slice(data);
            let done = input.len() - self.follow(&input)?.len();
            input.drain(..done);
            self.partial = input;
        }
        Ok(self.table.insert_count() > before)
    }

    /// Executes all complete instructions, and returns the rest.
    fn follow<'a>(&mut self, mut input: &'a [u8]) -> Result<&'a [u8], Code> {
        while !input.is_empty() {
            let most = self.table.capacity().saturating_sub(SMALLEST_ENTRY);
            let done = match EncoderInstruction::read(&mut input, most) {
                Ok(instruction) => self.apply(instruction),
                Err(InstructionError::Truncated) => return Ok(input),
                Err(InstructionError::Invalid) => None,
            };
            done.ok_or(Code::QPACK_ENCODER_STREAM_ERROR)?;
        }
        Ok(input)
    }

    /// `None` if the instruction is invalid.
    fn apply(&mut self, instruction: EncoderInstruction<'_>) -> Option<()> {
        match instruction {
            EncoderInstruction::SetCapacity(capacity) => {
                let capacity = usize::try_from(capacity).ok()?;
                // RFC 9204 §4.3.1: at most the limit given in SETTINGS.
                if capacity > self.max_capacity {
                    return None;
                }
                self.table.set_capacity(capacity);
            }
            EncoderInstruction::InsertWithStaticName { index, value } => {
                let index = usize::try_from(index).ok()?;
                let (name, _) = static_table::get(index)?;
                let text = self.table.begin();
                text.extend_from_slice(name);
                value.append_to(text).ok()?;
                let static_name = static_table::canonical_index(index);
                self.table.insert(name.len(), static_name).ok()?;
            }
            EncoderInstruction::InsertWithDynamicName { relative, value } => {
                let absolute = self.absolute(relative)?;
                let (name_len, static_name) = self.table.begin_with_name_of(absolute)?;
                value.append_to(self.table.draft_mut()).ok()?;
                self.table.insert(name_len, static_name).ok()?;
            }
            EncoderInstruction::InsertWithLiteralName { name, value } => {
                let text = self.table.begin();
                let start = text.len();
                name.append_to(text).ok()?;
                let name_len = text.len() - start;
                value.append_to(text).ok()?;
                self.table.insert(name_len, None).ok()?;
            }
            EncoderInstruction::Duplicate { relative } => {
                self.table.duplicate(self.absolute(relative)?)?;
            }
        }
        Some(())
    }

    /// The absolute index of an entry, counted from the newest one (RFC 9204 §3.2.5).
    fn absolute(&self, relative: u64) -> Option<u64> {
        self.table
            .insert_count()
            .checked_sub(relative)?
            .checked_sub(1)
    }

    /// Decodes the field section `block` of a stream into `out`, replacing its contents.
    ///
    /// `max_size` is the largest [`FieldSection::size`]. It is checked line by line during
    /// decoding, so that a few references to long entries cannot expand into a large section.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(
        &mut self,
        stream_id: u64,
        block: &[u8],
        max_size: usize,
        out: &mut FieldSection,
    ) -> Result<Decoded, DecodeError> {
        out.clear();
        let mut rest = block;
        let prefix = Prefix::read(&mut rest).map_err(|_| FAILED)?;
        let required = self
            .required(stream_id, prefix.encoded_insert_count)
            .ok_or(FAILED)?;
        let base = prefix.base(required).map_err(|_| FAILED)?;
        if required > self.table.insert_count() {
            return self.block(stream_id, required);
        }
        let lines = Lines {
            table: &self.table,
            required,
            base,
            limit: max_size,
        };
        let result = lines.decode(rest, out);
        if result == Err(Rejected::Invalid) {
            return Err(FAILED);
        }
        if required > 0 {
            self.unblock(stream_id);
            self.known_received = self.known_received.max(required);
            DecoderInstruction::SectionAcknowledgment { stream_id }.write(&mut self.instructions);
        }
        match result {
            Ok(()) => Ok(Decoded::Done),
            Err(_) => Err(DecodeError::TooLarge),
        }
    }

    /// The Required Insert Count of a section. A blocked section keeps its count, however many
    /// inserts the encoding is relative to now.
    #[inline]
    fn required(&self, stream_id: u64, encoded: u64) -> Option<u64> {
        if encoded == 0 {
            return Some(0);
        }
        let known = self
            .blocked
            .iter()
            .find(|blocked| blocked.stream_id == stream_id);
        if let Some(known) = known {
            return Some(known.required);
        }
        let max_entries = (self.max_capacity / SMALLEST_ENTRY) as u64;
        section::required_insert_count(encoded, max_entries, self.table.insert_count())
    }

    fn block(&mut self, stream_id: u64, required: u64) -> Result<Decoded, DecodeError> {
        if self
            .blocked
            .iter()
            .any(|blocked| blocked.stream_id == stream_id)
        {
            return Ok(Decoded::Blocked);
        }
        // RFC 9204 §2.1.2: no more than SETTINGS allowed. Sections that only wait for their caller
        // are not blocked, as the encoder knows.
        let insert_count = self.table.insert_count();
        let blocked = self
            .blocked
            .iter()
            .filter(|blocked| blocked.required > insert_count);
        if blocked.count() >= self.max_blocked_streams {
            return Err(FAILED);
        }
        self.blocked.push(Blocked {
            stream_id,
            required,
        });
        Ok(Decoded::Blocked)
    }

    fn unblock(&mut self, stream_id: u64) {
        let blocked = self
            .blocked
            .iter()
            .position(|blocked| blocked.stream_id == stream_id);
        if let Some(at) = blocked {
            self.blocked.swap_remove(at);
        }
    }

    /// The stream was reset before its end, or is not read to its end: its sections will not be
    /// decoded (RFC 9204 §2.2.2.2).
    pub fn cancel_stream(&mut self, stream_id: u64) {
        // Without a table the encoder has no references to count.
        if self.max_capacity == 0 {
            return;
        }
        self.unblock(stream_id);
        DecoderInstruction::StreamCancellation { stream_id }.write(&mut self.instructions);
    }

    /// Data to send on the decoder stream; the caller removes what it has sent.
    ///
    /// Inserts that no acknowledged section implied are reported when this is called, so one call
    /// after everything that arrived together saves most of these reports.
    pub fn instructions(&mut self) -> &mut Vec<u8> {
        let unreported = self.table.insert_count() - self.known_received;
        if unreported > 0 {
            self.known_received += unreported;
            DecoderInstruction::InsertCountIncrement(unreported).write(&mut self.instructions);
        }
        &mut self.instructions
    }
}
