//! The file below the root that a request's path names, and the names that are never served.

use std::borrow::Cow;

/// The one name that starts with a dot and is public by definition (RFC 8615).
const WELL_KNOWN: &[u8] = b".well-known";

/// A path below the root: the decoded segments joined by single slashes, without a leading slash. A
/// trailing slash remains; the root itself is empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target<'a>(Cow<'a, [u8]>);

impl<'a> Target<'a> {
    /// Decodes the path of a request. `None` refuses it: a segment starts with a dot (including
    /// `..`), contains a slash, a NUL or another control character once decoded, or is not properly
    /// encoded. Empty segments are ignored, as in most servers.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix('/')?.as_bytes();
        let is_plain = !rest.contains(&b'%') && !rest.starts_with(b"/") && !has_double_slash(rest);
        let target = if is_plain {
            Cow::Borrowed(rest)
        } else {
            Cow::Owned(decode(rest)?)
        };
        let name = target.strip_suffix(b"/").unwrap_or(&target);
        let is_allowed = name.is_empty()
            || name
                .split(|&byte| byte == b'/')
                .enumerate()
                .all(|(at, segment)| is_allowed(segment) || (at == 0 && segment == WELL_KNOWN));
        is_allowed.then_some(Self(target))
    }

    /// The cache's key.
    pub(super) fn key(&self) -> &[u8] {
        &self.0
    }

    /// Whether it names a folder: it ends in a slash or is the root.
    pub(super) fn is_folder(&self) -> bool {
        self.0.is_empty() || self.0.ends_with(b"/")
    }

    /// The path of a file or folder, without a trailing slash; empty for the root.
    pub(super) fn name(&self) -> &[u8] {
        self.0.strip_suffix(b"/").unwrap_or(&self.0)
    }

    /// The folder of this name as a path of a URI: always with one leading slash, so that a
    /// redirect never leads to another host, and encoded where necessary.
    pub(super) fn folder_uri(&self) -> String {
        let mut uri = String::from("/");
        encode(self.name(), &mut uri);
        uri.push('/');
        uri
    }
}

fn has_double_slash(path: &[u8]) -> bool {
    path.windows(2).any(|pair| pair == b"//")
}

/// Whether a decoded segment may be a name. On systems other than Unix, colons and backslashes are
/// separators as well.
pub(super) fn is_allowed(segment: &[u8]) -> bool {
    let is_separator = |byte: &u8| cfg!(not(unix)) && matches!(byte, b':' | b'\\');
    !segment.starts_with(b".")
        && !segment
            .iter()
            .any(|byte| byte.is_ascii_control() || is_separator(byte))
}

/// Decodes each segment (RFC 3986 §2.1) and joins them with single slashes.
fn decode(path: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(path.len());
    for segment in path.split(|&byte| byte == b'/') {
        if segment.is_empty() {
            continue;
        }
        let mut bytes = segment.iter();
        while let Some(&byte) = bytes.next() {
            let byte = match byte {
                b'%' => hex(*bytes.next()?)? << 4 | hex(*bytes.next()?)?,
                byte => byte,
            };
            // An encoded slash would be part of a name, and names have none.
            if byte == b'/' {
                return None;
            }
            decoded.push(byte);
        }
        decoded.push(b'/');
    }
    if !path.ends_with(b"/") {
        decoded.pop();
    }
    Some(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// Appends a path, encoding everything except slashes and unreserved characters (RFC 3986 §2.3).
pub(super) fn encode(path: &[u8], uri: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(byte.into());
        } else {
            uri.push('%');
            uri.push(DIGITS[usize::from(byte >> 4)].into());
            uri.push(DIGITS[usize::from(byte & 0xf)].into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_root_or_name_hidden_files_are_rejected() {
        let refused = [
            "",
            "*",
            "a",
            "/..",
            "/../etc/passwd",
            "/a/../b",
            "/a/..",
            "/a/../",
            "/.",
            "/./a",
            "/...",
            "/%2e%2e/etc/passwd",
            "/%2E%2e/",
            "/.%2e/a",
            "/a/%2e%2e%2fb",
            "/..%2fetc",
            "/a%2fb",
            "/a%2Fb",
            "/%2fetc/passwd",
            "/a%00.html",
            "/%00",
            "/a\0b",
            "/a%0ab",
            "/a%7f",
            "/.git/config",
            "/.git",
            "/%2egit/config",
            "/a/.htpasswd",
            "/a/.well-known/b",
            "/.well-known-not/b",
            "/.well-known/.hidden",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%+1b",
            "/%%32e",
        ];
        for path in refused {
            assert_eq!(Target::parse(path), None, "{path:?}");
        }
    }

    #[test]
    fn paths_are_decoded_once_and_their_slashes_merged() {
        let cases: [(&str, &[u8], bool); 15] = [
            ("/", b"", true),
            ("//", b"", true),
            ("/a", b"a", false),
            ("/a/", b"a/", true),
            ("/a/b.txt", b"a/b.txt", false),
            ("//a//b", b"a/b", false),
            ("/a//", b"a/", true),
            ("/a%20b", b"a b", false),
            ("/a+b", b"a+b", false),
            ("/%61", b"a", false),
            // Decoded once: the result is a name with a percent sign.
            ("/%252e%252e", b"%2e%2e", false),
            ("/%ff", b"\xff", false),
            ("/\u{e4}", "\u{e4}".as_bytes(), false),
            (
                "/.well-known/acme-challenge/x",
                b".well-known/acme-challenge/x",
                false,
            ),
            ("/a..b", b"a..b", false),
        ];
        for (path, key, is_folder) in cases {
            let target = Target::parse(path).unwrap_or_else(|| panic!("{path:?}"));
            assert_eq!(target.key(), key, "{path:?}");
            assert_eq!(target.is_folder(), is_folder, "{path:?}");
        }
    }

    #[test]
    fn a_redirect_stays_on_this_host() {
        let uri = |path| Target::parse(path).map(|target| target.folder_uri());
        assert_eq!(uri("//evil.example"), Some("/evil.example/".to_owned()));
        assert_eq!(uri("/a b"), Some("/a%20b/".to_owned()));
        assert_eq!(uri("/a%3Fb%0d"), None);
        assert_eq!(uri("/a%3Fb%23"), Some("/a%3Fb%23/".to_owned()));
        #[cfg(unix)]
        assert_eq!(
            uri("/%5Cevil.example"),
            Some("/%5Cevil.example/".to_owned())
        );
    }
}
