//! Extensible priorities (RFC 9218).

use squall::Priority;

/// The urgency of a request that names none (RFC 9218 §4.1).
const DEFAULT_URGENCY: i32 = 3;

/// What a `priority` field means for the stream (RFC 9218 §4): urgency 0 to 7, lower is more
/// urgent, and whether partial responses are useful. Wrong or unknown parts are ignored.
pub(crate) fn priority_of(value: &[u8]) -> Priority {
    let (mut urgency, mut incremental) = (DEFAULT_URGENCY, false);
    for member in value.split(|byte| *byte == b',') {
        // RFC 8941 §3.1.2: parameters of a member have no meaning here.
        let member = member
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        match member.trim_ascii() {
            &[b'u', b'=', digit @ b'0'..=b'7'] => urgency = i32::from(digit - b'0'),
            b"i" | b"i=?1" => incremental = true,
            b"i=?0" => incremental = false,
            _ => {}
        }
    }
    Priority {
        level: DEFAULT_URGENCY - urgency,
        incremental,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // test: RFC 9218 §4
    #[test]
    fn fields_become_priorities() {
        for (value, level, incremental) in [
            (&b""[..], 0, false),
            (b"u=3", 0, false),
            (b"u=0", 3, false),
            (b"u=7, i", -4, true),
            (b"i", 0, true),
            (b"i=?0", 0, false),
            (b" u=1 ,i=?1", 2, true),
            (b"u=8", 0, false),
            (b"u=x, \xff, =, i;a=1", 0, true),
        ] {
            let expected = Priority { level, incremental };
            assert_eq!(priority_of(value), expected, "{value:?}");
        }
    }
}
