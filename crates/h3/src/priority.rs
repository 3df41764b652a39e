//! Extensible priorities (RFC 9218).

use squall::{Priority, SendStream};

use crate::qpack::Field;

/// The urgency of a request that names none (RFC 9218 §4.1).
const DEFAULT_URGENCY: i32 = 3;

/// What a `priority` field says (RFC 9218 §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// 0 to 7, lower is more urgent.
    urgency: Option<i32>,
    /// Whether partial responses are useful.
    incremental: Option<bool>,
}

impl Wish {
    /// Reads a field value. Wrong or unknown parts are ignored.
    fn of(value: &[u8]) -> Self {
        let mut wish = Self::default();
        wish.read(value);
        wish
    }

    /// Reads a field of a response, if it is of this name.
    #[inline]
    pub(crate) fn note(&mut self, field: &Field<'_>) {
        if field.name == b"priority" {
            self.read(field.value);
        }
    }

    fn read(&mut self, value: &[u8]) {
        for member in value.split(|byte| *byte == b',') {
            // RFC 8941 §3.1.2: parameters of a member have no meaning here.
            let member = member
                .split(|byte| *byte == b';')
                .next()
                .unwrap_or_default();
            match member.trim_ascii() {
                &[b'u', b'=', digit @ b'0'..=b'7'] => {
                    self.urgency = Some(i32::from(digit - b'0'));
                }
                b"i" | b"i=?1" => self.incremental = Some(true),
                b"i=?0" => self.incremental = Some(false),
                _ => {}
            }
        }
    }

    /// What a request asks for: what it does not name has the defaults of RFC 9218 §4.
    pub(crate) fn of_request(value: &[u8]) -> Priority {
        let (level, incremental) = (0, false);
        Self::of(value).over(Priority { level, incremental })
    }

    /// Overrides the stream's priority where this one has a value, as a server's does its client's
    /// (RFC 9218 §8).
    pub(crate) fn apply_to(self, send: &SendStream) {
        if self != Self::default()
            && let Some(priority) = send.priority()
        {
            let _ = send.set_priority(self.over(priority));
        }
    }

    fn over(self, priority: Priority) -> Priority {
        Priority {
            level: (self.urgency).map_or(priority.level, |urgency| DEFAULT_URGENCY - urgency),
            incremental: self.incremental.unwrap_or(priority.incremental),
        }
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
            assert_eq!(Wish::of_request(value), expected, "{value:?}");
        }
    }

    // test: RFC 9218 §8
    #[test]
    fn a_servers_priority_overrides_only_the_parameters_it_names() {
        let client = Wish::of_request(b"u=5, i");
        let mut wish = Wish::default();
        for (name, value, level, incremental) in [
            (&b"server"[..], &b"u=1"[..], -2, true),
            (b"priority", b"u=1", 2, true),
            (b"priority", b"u=6, i=?0", -3, false),
        ] {
            wish.note(&Field::new(name, value));
            let expected = Priority { level, incremental };
            assert_eq!(wish.over(client), expected);
        }
    }
}
