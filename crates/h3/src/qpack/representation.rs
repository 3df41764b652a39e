//! Lines of an encoded field section, as the encoder writes them: RFC 9204 §4.5.

use super::field::Field;
use super::integer;
use super::static_table;
use super::string;

/// The static index of `cookie`.
const COOKIE: u8 = 5;
/// The static index of `authorization`.
const AUTHORIZATION: u8 = 84;
/// Cookies shorter than this could be guessed (RFC 9204 §7.1.3).
const GUESSABLE_COOKIE: usize = 20;

/// Where the name of a literal line is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    /// In the static table.
    Static(u8),
    /// In the dynamic table, with this absolute index.
    Dynamic { absolute: u64, base: u64 },
    /// In the line itself.
    Literal(&'a [u8]),
}

impl<'a> Name<'a> {
    /// The name's static index, or the name itself.
    #[inline]
    pub(super) fn of(name: &'a [u8], static_name: Option<u8>) -> Self {
        static_name.map_or(Self::Literal(name), Self::Static)
    }
}

/// Whether a line must not be indexed anywhere: its value is secret and could be guessed.
#[inline]
pub(super) fn never_indexed(field: &Field<'_>, static_name: Option<u8>) -> bool {
    field.sensitive
        || match static_name {
            Some(COOKIE) => field.value.len() < GUESSABLE_COOKIE,
            Some(AUTHORIZATION) => true,
            _ => false,
        }
}

/// Appends an entry of the static table.
#[inline]
pub(super) fn write_static(index: u8, out: &mut Vec<u8>) {
    integer::write::<6>(0xc0, u64::from(index), out);
}

/// Appends an entry of the dynamic table.
#[inline]
pub(super) fn write_dynamic(absolute: u64, base: u64, out: &mut Vec<u8>) {
    if absolute < base {
        integer::write::<6>(0x80, base - 1 - absolute, out);
    } else {
        integer::write::<4>(0x10, absolute - base, out);
    }
}

/// Appends a literal line.
#[inline]
pub(super) fn write_literal(name: Name<'_>, value: &[u8], never_indexed: bool, out: &mut Vec<u8>) {
    let never = u8::from(never_indexed);
    match name {
        Name::Static(index) => integer::write::<4>(0x50 | never << 5, u64::from(index), out),
        Name::Dynamic { absolute, base } if absolute < base => {
            integer::write::<4>(0x40 | never << 5, base - 1 - absolute, out);
        }
        Name::Dynamic { absolute, base } => {
            integer::write::<3>(never << 3, absolute - base, out);
        }
        Name::Literal(name) => string::write::<3>(0x20 | never << 4, name, out),
    }
    string::write::<7>(0, value, out);
}

/// Appends `fields` as a section that refers only to the static table. It is the same on every
/// connection.
pub fn encode_static<'a>(fields: impl Iterator<Item = Field<'a>>, out: &mut Vec<u8>) {
    // Required Insert Count and Base.
    out.extend_from_slice(&[0, 0]);
    for field in fields {
        let static_name = static_table::find_name(field.name);
        let never = never_indexed(&field, static_name);
        let line = match static_name {
            Some(first) if !never => static_table::find_value(first, field.value),
            _ => None,
        };
        match line {
            Some(index) => write_static(index, out),
            None => write_literal(Name::of(field.name, static_name), field.value, never, out),
        }
    }
}
