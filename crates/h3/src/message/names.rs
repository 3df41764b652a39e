//! Names and values of fields: which bytes they may contain (RFC 9110 §5.1, §5.5, §5.6.2).

use http::{HeaderName, header};

/// What a byte may be part of.
const TOKEN: u8 = 1;
const NAME: u8 = 2;
const VALUE: u8 = 4;

const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0u8;
    loop {
        let class = &mut classes[byte as usize];
        if byte == b'\t' || byte >= b' ' && byte != 0x7f {
            *class |= VALUE;
        }
        let special = matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        if special || byte.is_ascii_alphanumeric() {
            *class |= TOKEN;
            // RFC 9114 §4.2: upper-case names are malformed.
            if !byte.is_ascii_uppercase() {
                *class |= NAME;
            }
        }
        if byte == u8::MAX {
            return classes;
        }
        byte += 1;
    }
}

const fn class(byte: u8) -> u8 {
    CLASSES[byte as usize]
}

pub(super) const fn is_token_byte(byte: u8) -> bool {
    class(byte) & TOKEN != 0
}

/// Whether this is a valid field name in lower case.
#[inline]
pub(super) fn is_valid(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().fold(NAME, |all, byte| all & class(*byte)) != 0
}

/// Whether this is a valid field value. Leading and trailing whitespace is not part of a value.
#[inline]
pub(super) fn is_valid_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    value.iter().fold(VALUE, |all, byte| all & class(*byte)) != 0
        && !is_space(value.first())
        && !is_space(value.last())
}

/// The name in QPACK's static table (RFC 9204 Appendix A) as the `http` crate's constant; `None` if
/// there is none. `index` is that of the first entry with the name.
pub(super) fn standard(index: u8) -> Option<HeaderName> {
    Some(match index {
        2 => header::AGE,
        3 => header::CONTENT_DISPOSITION,
        4 => header::CONTENT_LENGTH,
        5 => header::COOKIE,
        6 => header::DATE,
        7 => header::ETAG,
        8 => header::IF_MODIFIED_SINCE,
        9 => header::IF_NONE_MATCH,
        10 => header::LAST_MODIFIED,
        11 => header::LINK,
        12 => header::LOCATION,
        13 => header::REFERER,
        14 => header::SET_COOKIE,
        29 => header::ACCEPT,
        31 => header::ACCEPT_ENCODING,
        32 => header::ACCEPT_RANGES,
        33 => header::ACCESS_CONTROL_ALLOW_HEADERS,
        35 => header::ACCESS_CONTROL_ALLOW_ORIGIN,
        36 => header::CACHE_CONTROL,
        42 => header::CONTENT_ENCODING,
        44 => header::CONTENT_TYPE,
        55 => header::RANGE,
        56 => header::STRICT_TRANSPORT_SECURITY,
        59 => header::VARY,
        61 => header::X_CONTENT_TYPE_OPTIONS,
        62 => header::X_XSS_PROTECTION,
        72 => header::ACCEPT_LANGUAGE,
        73 => header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
        76 => header::ACCESS_CONTROL_ALLOW_METHODS,
        79 => header::ACCESS_CONTROL_EXPOSE_HEADERS,
        80 => header::ACCESS_CONTROL_REQUEST_HEADERS,
        81 => header::ACCESS_CONTROL_REQUEST_METHOD,
        83 => header::ALT_SVC,
        84 => header::AUTHORIZATION,
        85 => header::CONTENT_SECURITY_POLICY,
        88 => header::FORWARDED,
        89 => header::IF_RANGE,
        90 => header::ORIGIN,
        92 => header::SERVER,
        94 => header::UPGRADE_INSECURE_REQUESTS,
        95 => header::USER_AGENT,
        97 => header::X_FRAME_OPTIONS,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_tokens() {
        for name in [&b"a"[..], b"x-y_z", b"0", b"~!#"] {
            assert!(is_valid(name), "{name:?}");
        }
        for name in [
            &b""[..],
            b"A",
            b"aB",
            b"a b",
            b"a:b",
            b":a",
            b"a\0",
            b"\xff",
            b"a\n",
        ] {
            assert!(!is_valid(name), "{name:?}");
        }
    }

    #[test]
    fn values_have_no_control_characters() {
        for value in [&b""[..], b"a", b"a b\tc", b"\xff\x80"] {
            assert!(is_valid_value(value), "{value:?}");
        }
        for value in [&b"\0"[..], b"a\r", b"a\nb", b"\x7f", b"\x1f", b" a", b"a\t"] {
            assert!(!is_valid_value(value), "{value:?}");
        }
    }
}
