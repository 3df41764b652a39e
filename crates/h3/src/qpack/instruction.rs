//! The instructions between encoder and decoder: RFC 9204 §4.3 and §4.4.

use super::integer::{self, IntegerError};
use super::static_table;
use super::string::{Literal, StringError};

/// Why no instruction could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InstructionError {
    /// It has not arrived completely.
    Truncated,
    /// It can never be executed: a number or a string is too large.
    Invalid,
}

impl From<IntegerError> for InstructionError {
    fn from(error: IntegerError) -> Self {
        match error {
            IntegerError::Truncated => Self::Truncated,
            IntegerError::TooLarge => Self::Invalid,
        }
    }
}

impl From<StringError> for InstructionError {
    fn from(error: StringError) -> Self {
        match error {
            StringError::Truncated => Self::Truncated,
            StringError::Length | StringError::TooLong => Self::Invalid,
        }
    }
}

/// An instruction from the encoder (RFC 9204 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncoderInstruction<'a> {
    SetCapacity(u64),
    InsertWithStaticName {
        index: u64,
        value: Literal<'a>,
    },
    /// Relative to the newest entry.
    InsertWithDynamicName {
        relative: u64,
        value: Literal<'a>,
    },
    InsertWithLiteralName {
        name: Literal<'a>,
        value: Literal<'a>,
    },
    /// Relative to the newest entry.
    Duplicate {
        relative: u64,
    },
}

impl<'a> EncoderInstruction<'a> {
    /// The instruction at the front of `input`, which must not be empty and is advanced.
    ///
    /// `most` is the longest text of an entry: a longer one is invalid before all of it has
    /// arrived, so that only instructions that can be executed are ever buffered.
    pub(super) fn read(input: &mut &'a [u8], most: usize) -> Result<Self, InstructionError> {
        let (first, mut rest) = input.split_first().ok_or(InstructionError::Truncated)?;
        let first = *first;
        let rest_mut = &mut rest;
        let instruction = if first & 0x80 != 0 {
            let index = integer::read::<6>(first, rest_mut)?;
            if first & 0x40 != 0 && index >= static_table::LEN as u64 {
                return Err(InstructionError::Invalid);
            }
            let value = read_string(rest_mut, most)?;
            if first & 0x40 != 0 {
                Self::InsertWithStaticName { index, value }
            } else {
                Self::InsertWithDynamicName {
                    relative: index,
                    value,
                }
            }
        } else if first & 0x40 != 0 {
            let name = Literal::read::<5>(first, rest_mut, most)?;
            let value = read_string(rest_mut, most)?;
            Self::InsertWithLiteralName { name, value }
        } else {
            let number = integer::read::<5>(first, rest_mut)?;
            if first & 0x20 != 0 {
                Self::SetCapacity(number)
            } else {
                Self::Duplicate { relative: number }
            }
        };
        *input = rest;
        Ok(instruction)
    }
}

fn read_string<'a>(rest: &mut &'a [u8], most: usize) -> Result<Literal<'a>, InstructionError> {
    let (first, after) = rest.split_first().ok_or(InstructionError::Truncated)?;
    *rest = after;
    Ok(Literal::read::<7>(*first, rest, most)?)
}

/// An instruction from the decoder (RFC 9204 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecoderInstruction {
    SectionAcknowledgment { stream_id: u64 },
    StreamCancellation { stream_id: u64 },
    InsertCountIncrement(u64),
}

impl DecoderInstruction {
    /// The longest instruction: a prefix, and nine bytes.
    pub(super) const LONGEST: usize = 10;

    /// The instruction at the front of `input`, which must not be empty and is advanced.
    pub(super) fn read(input: &mut &[u8]) -> Result<Self, InstructionError> {
        let (first, mut rest) = input.split_first().ok_or(InstructionError::Truncated)?;
        let instruction = if first & 0x80 != 0 {
            let stream_id = integer::read::<7>(*first, &mut rest)?;
            Self::SectionAcknowledgment { stream_id }
        } else if first & 0x40 != 0 {
            let stream_id = integer::read::<6>(*first, &mut rest)?;
            Self::StreamCancellation { stream_id }
        } else {
            Self::InsertCountIncrement(integer::read::<6>(*first, &mut rest)?)
        };
        *input = rest;
        Ok(instruction)
    }

    /// Appends it.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::SectionAcknowledgment { stream_id } => {
                integer::write::<7>(0x80, stream_id, out);
            }
            Self::StreamCancellation { stream_id } => integer::write::<6>(0x40, stream_id, out),
            Self::InsertCountIncrement(increment) => integer::write::<6>(0, increment, out),
        }
    }
}
