//! Reads field sections as the head of a message, and checks every rule once.

use std::fmt;
use std::str;

use super::names;
use crate::qpack::{FieldLine, FieldSection};

/// A message breaks this rule of RFC 9114 §4; the text is for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The head of a request as it arrived, before it becomes an [`http::Request`]:
/// [`answer_first`](crate::server::Builder::answer_first) can answer from it alone.
///
/// All rules of RFC 9114 §4.2 and §4.3 have been checked.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    pub(super) section: &'a FieldSection,
    /// How many lines are pseudo-header fields. They come first.
    pub(super) pseudo: usize,
    pub(super) method: &'a str,
    pub(super) scheme: Option<&'a str>,
    pub(super) authority: Option<&'a str>,
    pub(super) path: Option<&'a str>,
    pub(super) protocol: Option<&'a str>,
    pub(crate) content_length: Option<u64>,
    /// The value of a `priority` field.
    pub(crate) priority: Option<&'a [u8]>,
    /// How many lines are `cookie`: they are joined.
    pub(super) cookies: usize,
    /// Whether the client sent `expect: 100-continue`.
    pub(crate) expects_continue: bool,
}

impl<'a> RequestHead<'a> {
    /// Reads a request's field section.
    ///
    /// # Errors
    /// The request is malformed.
    pub(crate) fn parse(section: &'a FieldSection) -> Result<Self, Malformed> {
        let (mut method, mut scheme, mut authority) = (None, None, None);
        let (mut path, mut protocol) = (None, None);
        let mut pseudo = 0;
        let mut regular = Regular::default();
        for line in section.iter() {
            if line.name.first() != Some(&b':') {
                regular.check(&line)?;
                continue;
            }
            if regular.lines > 0 {
                return Err(Malformed("pseudo-header field after other fields"));
            }
            pseudo += 1;
            let place = match line.name {
                b":method" => &mut method,
                b":scheme" => &mut scheme,
                b":authority" => &mut authority,
                b":path" => &mut path,
                b":protocol" => &mut protocol,
                _ => return Err(Malformed("unknown pseudo-header field")),
            };
            if place.replace(text(line.value)?).is_some() {
                return Err(Malformed("pseudo-header field twice"));
            }
        }
        let head = Self {
            section,
            pseudo,
            method: method.ok_or(Malformed("no :method"))?,
            scheme,
            authority,
            path,
            protocol,
            content_length: regular.content_length,
            priority: regular.priority,
            cookies: regular.cookies,
            expects_continue: regular.expects_continue,
        };
        head.check(regular.host)?;
        Ok(head)
    }

    /// The rules of RFC 9114 §4.3.1 and §4.4 and RFC 8441 §4 about pseudo-header fields.
    fn check(&self, host: Option<&[u8]>) -> Result<(), Malformed> {
        if self.method.is_empty() || !self.method.bytes().all(names::is_token_byte) {
            return Err(Malformed("invalid :method"));
        }
        if self.protocol.is_some() && self.method != "CONNECT" {
            return Err(Malformed(":protocol without CONNECT"));
        }
        if self.method == "CONNECT" && self.protocol.is_none() {
            if self.scheme.is_some() || self.path.is_some() {
                return Err(Malformed("CONNECT with :scheme or :path"));
            }
            return match self.authority {
                None | Some("") => Err(Malformed("CONNECT without :authority")),
                Some(authority) => check_host(authority, host),
            };
        }
        let scheme = self.scheme.ok_or(Malformed("no :scheme"))?;
        let path = self.path.ok_or(Malformed("no :path"))?;
        if !is_scheme(scheme) {
            return Err(Malformed("invalid :scheme"));
        }
        let is_http = scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("http");
        if !is_http {
            return self.authority.map_or(Ok(()), |name| check_host(name, host));
        }
        let asterisk = path == "*" && self.method == "OPTIONS";
        if !path.starts_with('/') && !asterisk {
            return Err(Malformed(":path does not begin with a slash"));
        }
        // Path and query: a fragment is not a part of them (RFC 9114 §4.3.1, RFC 3986 §3.5).
        if !path
            .bytes()
            .all(|byte| byte > b' ' && !matches!(byte, 0x7f | b'#'))
        {
            return Err(Malformed("invalid :path"));
        }
        match (self.authority, host) {
            (Some(authority), _) => check_host(authority, host),
            (None, Some(host)) if !host.is_empty() => {
                // The `Host` field takes the place of `:authority`.
                check_host(text(host)?, None)
            }
            _ => Err(Malformed("neither :authority nor Host")),
        }
    }

    /// The method, such as `GET`.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.method
    }

    /// The scheme, such as `https`; a plain CONNECT has none.
    #[must_use]
    pub fn scheme(&self) -> Option<&'a str> {
        self.scheme
    }

    /// The authority: host, and port if it is not the scheme's own.
    #[must_use]
    pub fn authority(&self) -> Option<&'a str> {
        self.authority
    }

    /// Path and query; a plain CONNECT has none.
    #[must_use]
    pub fn path(&self) -> Option<&'a str> {
        self.path
    }

    /// The protocol of an extended CONNECT (RFC 9220).
    #[must_use]
    pub fn protocol(&self) -> Option<&'a str> {
        self.protocol
    }

    /// The fields after the pseudo-header fields, in order.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        Fields {
            section: self.section,
            next: self.pseudo,
        }
    }

    /// The value of the first field with this name, which must be in lower case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        let mut fields = self.fields();
        fields.find_map(|(field, value)| (field == name.as_bytes()).then_some(value))
    }
}

impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method)
            .field("scheme", &self.scheme)
            .field("authority", &self.authority)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Names and values of fields, in order.
#[derive(Clone)]
pub struct Fields<'a> {
    section: &'a FieldSection,
    next: usize,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.section.iter().nth(self.next)?;
        self.next += 1;
        Some((line.name, line.value))
    }
}

impl fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.clone().map(|(name, _)| name))
            .finish()
    }
}

/// The head of a response as it arrived.
#[derive(Clone, Copy)]
pub(crate) struct ResponseHead<'a> {
    pub(super) section: &'a FieldSection,
    pub(super) pseudo: usize,
    pub(crate) status: u16,
    pub(crate) content_length: Option<u64>,
}

impl<'a> ResponseHead<'a> {
    /// Reads a response's field section.
    ///
    /// # Errors
    /// The response is malformed.
    pub(crate) fn parse(section: &'a FieldSection) -> Result<Self, Malformed> {
        let mut status = None;
        let mut regular = Regular::default();
        for line in section.iter() {
            if line.name.first() != Some(&b':') {
                regular.check(&line)?;
            } else if regular.lines > 0 {
                return Err(Malformed("pseudo-header field after other fields"));
            } else if line.name != b":status" {
                return Err(Malformed("unknown pseudo-header field"));
            } else if status.replace(line.value).is_some() {
                return Err(Malformed("pseudo-header field twice"));
            }
        }
        // RFC 9114 §4.5: 101 has no meaning here.
        let status = match status.ok_or(Malformed("no :status"))? {
            [b'1', b'0', b'1'] => return Err(Malformed("status 101")),
            &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                let digit = |byte: u8| u16::from(byte - b'0');
                digit(a) * 100 + digit(b) * 10 + digit(c)
            }
            _ => return Err(Malformed("invalid :status")),
        };
        Ok(Self {
            section,
            pseudo: 1,
            status,
            content_length: regular.content_length,
        })
    }
}

/// Checks the fields of a trailer section.
///
/// # Errors
/// They are malformed, or include pseudo-header fields (RFC 9114 §4.3).
pub(crate) fn check_trailers(section: &FieldSection) -> Result<(), Malformed> {
    let mut regular = Regular::default();
    section.iter().try_for_each(|line| {
        if line.name.first() == Some(&b':') {
            return Err(Malformed("pseudo-header field in trailers"));
        }
        regular.check(&line)
    })
}

/// What is known about the fields after the pseudo-header fields.
#[derive(Default)]
struct Regular<'a> {
    lines: usize,
    host: Option<&'a [u8]>,
    content_length: Option<u64>,
    priority: Option<&'a [u8]>,
    cookies: usize,
    expects_continue: bool,
}

impl<'a> Regular<'a> {
    /// The rules of RFC 9114 §4.2 for one field line.
    #[inline]
    fn check(&mut self, line: &FieldLine<'a>) -> Result<(), Malformed> {
        self.lines += 1;
        if line.static_name.is_none() && !names::is_valid(line.name) {
            return Err(Malformed("invalid field name"));
        }
        if line.static_line.is_none() && !names::is_valid_value(line.value) {
            return Err(Malformed("invalid field value"));
        }
        match line.name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding"
            | b"upgrade" => return Err(Malformed("connection-specific field")),
            b"te" if line.value != b"trailers" => {
                return Err(Malformed("te other than trailers"));
            }
            b"host" if self.host.replace(line.value).is_some() => {
                return Err(Malformed("host twice"));
            }
            b"content-length" => {
                let length = decimal(line.value).ok_or(Malformed("invalid content-length"))?;
                if self
                    .content_length
                    .replace(length)
                    .is_some_and(|old| old != length)
                {
                    return Err(Malformed("contradictory content-length"));
                }
            }
            b"priority" => self.priority = Some(line.value),
            b"cookie" => self.cookies += 1,
            b"expect" => {
                self.expects_continue = line.value.eq_ignore_ascii_case(b"100-continue");
            }
            _ => {}
        }
        Ok(())
    }
}

/// A number consisting of digits only; `None` for anything else and for numbers beyond `u64`.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn text(value: &[u8]) -> Result<&str, Malformed> {
    str::from_utf8(value).map_err(|_| Malformed("pseudo-header field is not UTF-8"))
}

/// RFC 3986 §3.1.
fn is_scheme(scheme: &str) -> bool {
    let tail = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(tail)
}

/// RFC 9114 §4.3.1: an authority has no userinfo, and a `Host` field next to it must be the same.
fn check_host(authority: &str, host: Option<&[u8]>) -> Result<(), Malformed> {
    let allowed = |byte: u8| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b':'
                    | b'['
                    | b']'
                    | b'%'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b','
                    | b';'
                    | b'='
            )
    };
    if authority.is_empty() || !authority.bytes().all(allowed) {
        return Err(Malformed("invalid :authority"));
    }
    match host {
        Some(host) if !host.eq_ignore_ascii_case(authority.as_bytes()) => {
            Err(Malformed("Host differs from :authority"))
        }
        _ => Ok(()),
    }
}
