//! Preconditions and ranges (RFC 9110 §13 and §14).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{
    HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use http::{HeaderMap, Method};

/// The identity of the content that would be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validators<'a> {
    /// A strong entity tag, with its quotes.
    pub(super) etag: &'a str,
    /// Last-Modified, in whole seconds since 1970; absent if the file has no such time.
    pub(super) modified: Option<u64>,
}

/// The outcome of evaluating preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Proceed,
    /// 304
    NotModified,
    /// 412
    Failed,
}

/// Evaluates the preconditions of a GET or HEAD in the order of RFC 9110 §13.2.2.
pub(super) fn evaluate(headers: &HeaderMap, now: Validators<'_>) -> Verdict {
    if headers.contains_key(IF_MATCH) {
        if !any_tag(headers, &IF_MATCH, |tag| tag == now.etag) {
            return Verdict::Failed;
        }
    } else if let (Some(since), Some(modified)) =
        (date(headers, &IF_UNMODIFIED_SINCE), now.modified)
        && modified > since
    {
        return Verdict::Failed;
    }
    if headers.contains_key(IF_NONE_MATCH) {
        // §13.1.2: weak comparison.
        let same = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag) == now.etag;
        if any_tag(headers, &IF_NONE_MATCH, same) {
            return Verdict::NotModified;
        }
    } else if let (Some(since), Some(modified)) = (date(headers, &IF_MODIFIED_SINCE), now.modified)
        && modified <= since
    {
        return Verdict::NotModified;
    }
    Verdict::Proceed
}

/// Which part of the content is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it: 200.
    Whole,
    /// The first and the last byte: 206.
    Range { first: u64, last: u64 },
    /// 416
    Unsatisfiable,
}

/// The requested part of content of this length. A Range that asks for several parts or is
/// malformed is ignored, as RFC 9110 §14.2 allows, and so is that of a HEAD.
pub(super) fn part(method: &Method, headers: &HeaderMap, now: Validators<'_>, len: u64) -> Part {
    let Some(range) = headers.get(RANGE).filter(|_| method == Method::GET) else {
        return Part::Whole;
    };
    if let Some(condition) = headers.get(IF_RANGE) {
        // §13.1.5: strong comparison, so a weak tag never matches; a date must be the same.
        let condition = condition.to_str().unwrap_or_default().trim();
        let is_same =
            condition == now.etag || (now.modified.is_some() && seconds(condition) == now.modified);
        if !is_same {
            return Part::Whole;
        }
    }
    let range = range.to_str().unwrap_or_default();
    parse_range(range, len).unwrap_or(Part::Whole)
}

/// RFC 9110 §14.1.2; `None` if it is not one byte range.
fn parse_range(range: &str, len: u64) -> Option<Part> {
    let (unit, range) = range.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    if first.is_empty() {
        let suffix = number(last)?;
        if suffix == 0 || len == 0 {
            return Some(Part::Unsatisfiable);
        }
        let first = len.saturating_sub(suffix);
        return Some(Part::Range {
            first,
            last: len - 1,
        });
    }
    let first = number(first)?;
    let last = if last.is_empty() {
        u64::MAX
    } else {
        number(last)?
    };
    if last < first {
        return None;
    }
    if first >= len {
        return Some(Part::Unsatisfiable);
    }
    Some(Part::Range {
        first,
        last: last.min(len - 1),
    })
}

/// Digits only; values that do not fit saturate.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Whether an entity tag of a list passes; `*` always does. A malformed list matches nothing.
fn any_tag(headers: &HeaderMap, name: &HeaderName, passes: impl Fn(&str) -> bool) -> bool {
    headers.get_all(name).iter().any(|value| {
        let Ok(list) = value.to_str() else {
            return false;
        };
        if list.trim() == "*" {
            return true;
        }
        let mut rest = list;
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            let start = if rest.starts_with("W/") { 2 } else { 0 };
            // A quoted string without escapes (§8.8.3).
            let Some(quoted) = rest[start..].strip_prefix('"') else {
                return false;
            };
            let Some(end) = quoted.find('"') else {
                return false;
            };
            let (tag, after) = rest.split_at(start + end + 2);
            if passes(tag) {
                return true;
            }
            rest = after;
        }
    })
}

/// A field's date in seconds since 1970.
fn date(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    seconds(headers.get(name)?.to_str().ok()?.trim())
}

fn seconds(date: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(date).ok()?;
    let since = date.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// A date for a field.
pub(super) fn format_seconds(seconds: u64) -> String {
    let date: SystemTime = UNIX_EPOCH + Duration::from_secs(seconds);
    httpdate::fmt_http_date(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Validators<'_> = Validators {
        etag: "\"a,b\"",
        modified: Some(784_111_777),
    };
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn fields(fields: &[(&HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().expect("a value"));
        }
        headers
    }

    // test: RFC 9110 §13.2.2
    #[test]
    fn preconditions_are_evaluated_in_the_order_of_the_rfc() {
        use Verdict::{Failed, NotModified, Proceed};
        let cases: &[(&[(&HeaderName, &str)], Verdict)] = &[
            (&[], Proceed),
            (&[(&IF_NONE_MATCH, "\"a,b\"")], NotModified),
            (&[(&IF_NONE_MATCH, "W/\"a,b\"")], NotModified),
            (&[(&IF_NONE_MATCH, "\"x\", \"y,\" , \"a,b\"")], NotModified),
            (
                &[(&IF_NONE_MATCH, "\"x\""), (&IF_NONE_MATCH, "\"a,b\"")],
                NotModified,
            ),
            (&[(&IF_NONE_MATCH, "*")], NotModified),
            (&[(&IF_NONE_MATCH, "\"a\"")], Proceed),
            (&[(&IF_NONE_MATCH, "a,b")], Proceed),
            (&[(&IF_NONE_MATCH, "\"a,b")], Proceed),
            (&[(&IF_NONE_MATCH, "w/\"a,b\"")], Proceed),
            (&[(&IF_NONE_MATCH, "")], Proceed),
            (&[(&IF_MODIFIED_SINCE, DATE)], NotModified),
            (&[(&IF_MODIFIED_SINCE, AFTER)], NotModified),
            (&[(&IF_MODIFIED_SINCE, BEFORE)], Proceed),
            (&[(&IF_MODIFIED_SINCE, "yesterday")], Proceed),
            // The other two formats of RFC 9110 §5.6.7.
            (
                &[(&IF_MODIFIED_SINCE, "Sunday, 06-Nov-94 08:49:37 GMT")],
                NotModified,
            ),
            (
                &[(&IF_MODIFIED_SINCE, "Sun Nov  6 08:49:37 1994")],
                NotModified,
            ),
            // If-Modified-Since is ignored next to If-None-Match.
            (
                &[(&IF_NONE_MATCH, "\"x\""), (&IF_MODIFIED_SINCE, DATE)],
                Proceed,
            ),
            (&[(&IF_MATCH, "\"a,b\"")], Proceed),
            (&[(&IF_MATCH, "*")], Proceed),
            (&[(&IF_MATCH, "W/\"a,b\"")], Failed),
            (&[(&IF_MATCH, "\"x\"")], Failed),
            (&[(&IF_MATCH, "\"x\""), (&IF_NONE_MATCH, "\"a,b\"")], Failed),
            (&[(&IF_UNMODIFIED_SINCE, BEFORE)], Failed),
            (&[(&IF_UNMODIFIED_SINCE, DATE)], Proceed),
            // If-Unmodified-Since is ignored next to If-Match.
            (
                &[(&IF_MATCH, "\"a,b\""), (&IF_UNMODIFIED_SINCE, BEFORE)],
                Proceed,
            ),
        ];
        for (case, verdict) in cases {
            assert_eq!(evaluate(&fields(case), NOW), *verdict, "{case:?}");
        }
    }

    // test: RFC 9110 §14.1.2
    #[test]
    fn a_single_range_is_honoured_and_an_invalid_one_is_ignored() {
        use Part::{Unsatisfiable, Whole};
        let part_of = |first, last| Part::Range { first, last };
        let cases = [
            ("bytes=0-0", part_of(0, 0)),
            ("bytes=0-9", part_of(0, 9)),
            ("bytes=0-10", part_of(0, 9)),
            ("bytes=3-5", part_of(3, 5)),
            ("bytes=9-", part_of(9, 9)),
            ("bytes=0-", part_of(0, 9)),
            ("bytes=-1", part_of(9, 9)),
            ("bytes=-10", part_of(0, 9)),
            ("bytes=-99", part_of(0, 9)),
            ("bytes= 3-5 ", part_of(3, 5)),
            ("Bytes=3-5", part_of(3, 5)),
            ("bytes=2-99999999999999999999999", part_of(2, 9)),
            ("bytes=10-", Unsatisfiable),
            ("bytes=10-20", Unsatisfiable),
            ("bytes=99999999999999999999999-", Unsatisfiable),
            ("bytes=-0", Unsatisfiable),
            ("bytes=5-3", Whole),
            ("bytes=0-1,3-4", Whole),
            ("bytes=0-1, -1", Whole),
            ("bytes=", Whole),
            ("bytes=-", Whole),
            ("bytes=a-b", Whole),
            ("bytes=+1-2", Whole),
            ("bytes=--1", Whole),
            ("bytes 0-1", Whole),
            ("lines=0-1", Whole),
            ("", Whole),
        ];
        for (range, expected) in cases {
            let headers = fields(&[(&RANGE, range)]);
            assert_eq!(part(&Method::GET, &headers, NOW, 10), expected, "{range:?}");
            assert_eq!(part(&Method::HEAD, &headers, NOW, 10), Whole, "{range:?}");
        }
        for range in ["bytes=0-", "bytes=-1", "bytes=0-0"] {
            let headers = fields(&[(&RANGE, range)]);
            assert_eq!(part(&Method::GET, &headers, NOW, 0), Unsatisfiable);
        }
    }

    // test: RFC 9110 §13.1.5
    #[test]
    fn if_range_with_another_validator_sends_the_whole_content() {
        let cases = [
            ("\"a,b\"", true),
            (DATE, true),
            ("W/\"a,b\"", false),
            ("\"x\"", false),
            (AFTER, false),
            (BEFORE, false),
            ("", false),
            ("*", false),
        ];
        for (condition, is_same) in cases {
            let headers = fields(&[(&RANGE, "bytes=1-2"), (&IF_RANGE, condition)]);
            let is_part = part(&Method::GET, &headers, NOW, 10) != Part::Whole;
            assert_eq!(is_part, is_same, "{condition:?}");
        }
        let undated = Validators {
            modified: None,
            ..NOW
        };
        let headers = fields(&[(&RANGE, "bytes=1-2"), (&IF_RANGE, "never")]);
        assert_eq!(part(&Method::GET, &headers, undated, 10), Part::Whole);
    }

    #[test]
    fn dates_are_formatted_as_in_the_rfc() {
        assert_eq!(format_seconds(784_111_777), DATE);
    }
}
