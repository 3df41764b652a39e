//! The static table, and a search of it without extra memory or comparisons bound to fail.
//!
//! RFC 9204 Appendix A.

/// Entries of the table.
pub const LEN: usize = 99;

/// Names and values by index.
static ENTRIES: [(&[u8], &[u8]); LEN] = TABLE;

#[rustfmt::skip]
const TABLE: [(&[u8], &[u8]); LEN] = [
    (b":authority", b""),
    (b":path", b"/"),
    (b"age", b"0"),
    (b"content-disposition", b""),
    (b"content-length", b"0"),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"referer", b""),
    (b"set-cookie", b""),
    (b":method", b"CONNECT"),
    (b":method", b"DELETE"),
    (b":method", b"GET"),
    (b":method", b"HEAD"),
    (b":method", b"OPTIONS"),
    (b":method", b"POST"),
    (b":method", b"PUT"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"103"),
    (b":status", b"200"),
    (b":status", b"304"),
    (b":status", b"404"),
    (b":status", b"503"),
    (b"accept", b"*/*"),
    (b"accept", b"application/dns-message"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-headers", b"cache-control"),
    (b"access-control-allow-headers", b"content-type"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=0"),
    (b"cache-control", b"max-age=2592000"),
    (b"cache-control", b"max-age=604800"),
    (b"cache-control", b"no-cache"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"public, max-age=31536000"),
    (b"content-encoding", b"br"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/dns-message"),
    (b"content-type", b"application/javascript"),
    (b"content-type", b"application/json"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"image/gif"),
    (b"content-type", b"image/jpeg"),
    (b"content-type", b"image/png"),
    (b"content-type", b"text/css"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain"),
    (b"content-type", b"text/plain;charset=utf-8"),
    (b"range", b"bytes=0-"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains; preload"),
    (b"vary", b"accept-encoding"),
    (b"vary", b"origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
    (b":status", b"100"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"302"),
    (b":status", b"400"),
    (b":status", b"403"),
    (b":status", b"421"),
    (b":status", b"425"),
    (b":status", b"500"),
    (b"accept-language", b""),
    (b"access-control-allow-credentials", b"FALSE"),
    (b"access-control-allow-credentials", b"TRUE"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"get"),
    (b"access-control-allow-methods", b"get, post, options"),
    (b"access-control-allow-methods", b"options"),
    (b"access-control-expose-headers", b"content-length"),
    (b"access-control-request-headers", b"content-type"),
    (b"access-control-request-method", b"get"),
    (b"access-control-request-method", b"post"),
    (b"alt-svc", b"clear"),
    (b"authorization", b""),
    (b"content-security-policy", b"script-src 'none'; object-src 'none'; base-uri 'none'"),
    (b"early-data", b"1"),
    (b"expect-ct", b""),
    (b"forwarded", b""),
    (b"if-range", b""),
    (b"origin", b""),
    (b"purpose", b"prefetch"),
    (b"server", b""),
    (b"timing-allow-origin", b"*"),
    (b"upgrade-insecure-requests", b"1"),
    (b"user-agent", b""),
    (b"x-forwarded-for", b""),
    (b"x-frame-options", b"deny"),
    (b"x-frame-options", b"sameorigin"),
];

/// No entry.
const NONE: u8 = u8::MAX;

/// The first index of each name, by the [`slot`] of the name.
static FIRST: [u8; SLOTS] = first_by_slot();
/// For each entry the first one of the same name.
static CANONICAL: [u8; LEN] = canonical();
/// For each entry the next one of the same name.
static NEXT: [u8; LEN] = next();

const SLOTS: usize = 128;

/// A hash of a name that no two names of the table share; otherwise `first_by_slot` would not
/// compile. The factors were found by brute force.
const fn slot(name: &[u8]) -> usize {
    let len = name.len();
    if len == 0 {
        return 0;
    }
    // Both are below the length.
    let (half, late) = (name[len / 2], name[len * 3 / 4]);
    (len * 16 + half as usize * 9 + late as usize * 31) % SLOTS
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

const fn canonical() -> [u8; LEN] {
    let mut found = [NONE; LEN];
    let mut at = 0;
    while at < LEN {
        let mut first = 0;
        while !equal(TABLE[first].0, TABLE[at].0) {
            first += 1;
        }
        found[at] = first as u8;
        at += 1;
    }
    found
}

const fn next() -> [u8; LEN] {
    let mut found = [NONE; LEN];
    let mut at = 0;
    while at < LEN {
        let mut later = at + 1;
        while later < LEN && !equal(TABLE[later].0, TABLE[at].0) {
            later += 1;
        }
        if later < LEN {
            found[at] = later as u8;
        }
        at += 1;
    }
    found
}

const fn first_by_slot() -> [u8; SLOTS] {
    let firsts = canonical();
    let mut found = [NONE; SLOTS];
    let mut at = 0;
    while at < LEN {
        if firsts[at] as usize == at {
            let slot = slot(TABLE[at].0);
            assert!(found[slot] == NONE, "two names share a slot");
            found[slot] = at as u8;
        }
        at += 1;
    }
    found
}

/// Name and value of the entry at `index`.
#[inline]
#[must_use]
pub fn get(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(index).copied()
}

/// The first index with the same name as the entry at `index`, which identifies the name.
#[inline]
#[must_use]
pub fn canonical_index(index: usize) -> Option<u8> {
    CANONICAL.get(index).copied()
}

/// The first index with this name.
#[inline]
#[must_use]
pub fn find_name(name: &[u8]) -> Option<u8> {
    let first = *FIRST.get(slot(name))?;
    let (known, _) = ENTRIES.get(usize::from(first))?;
    (*known == name).then_some(first)
}

/// The index of the entry that has the name of entry `first`, as returned by [`find_name`], and
/// this value.
#[inline]
#[must_use]
pub fn find_value(first: u8, value: &[u8]) -> Option<u8> {
    let mut index = first;
    while let Some((_, known)) = ENTRIES.get(usize::from(index)) {
        if *known == value {
            return Some(index);
        }
        index = *NEXT.get(usize::from(index))?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_value() {
        for (index, (name, value)) in ENTRIES.iter().enumerate() {
            let first = find_name(name).expect("its name");
            assert_eq!(ENTRIES[usize::from(first)].0, *name);
            assert_eq!(
                ENTRIES.iter().position(|(known, _)| known == name),
                Some(usize::from(first))
            );
            assert_eq!(canonical_index(index), Some(first));
            assert_eq!(find_value(first, value).map(usize::from), Some(index));
            assert_eq!(find_value(first, b"no such value"), None);
        }
    }

    #[test]
    fn other_names_are_not_found() {
        for name in [&b""[..], b"x", b":", b"cookies", b"x-request-id", b"Cookie"] {
            assert_eq!(find_name(name), None, "{name:?}");
        }
        assert_eq!(get(LEN), None);
        assert_eq!(canonical_index(LEN), None);
    }
}
