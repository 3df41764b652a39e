//! The list of a folder's files (`--browse`).

use std::fmt::Write as _;
use std::io;
use std::time::UNIX_EPOCH;

use super::conditional::format_seconds;
use super::path::{encode, is_allowed};
use super::root::Root;

/// The most names in a listing.
const LIMIT: usize = 10_000;

/// The Content-Security-Policy of a listing: nothing but its own style.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

struct Row {
    is_folder: bool,
    name: String,
    uri: String,
    len: u64,
    modified: Option<u64>,
}

/// The page of a folder: folders first, both sorted by name. Names that are not served are omitted.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn page(root: &Root, folder: &[u8]) -> io::Result<String> {
    let mut rows: Vec<Row> = root
        .names(folder, LIMIT)?
        .iter()
        .filter_map(|name| row(root, folder, name.as_encoded_bytes()))
        .collect();
    rows.sort_by(|a, b| (b.is_folder, &a.name).cmp(&(a.is_folder, &b.name)));
    let mut title = String::new();
    escape(&String::from_utf8_lossy(folder), &mut title);
    let mut page = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>/{title}</title>\n<style>body{{font-family:\
         system-ui,sans-serif;margin:2em}}td{{padding:.1em 1.5em .1em 0}}td+td{{text-align:right;\
         font-variant-numeric:tabular-nums}}</style>\n<h1>/{title}</h1>\n<table>\n"
    );
    if !folder.is_empty() {
        page.push_str("<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    for row in rows {
        let slash = if row.is_folder { "/" } else { "" };
        page.push_str("<tr><td><a href=\"./");
        page.push_str(&row.uri);
        page.push_str(slash);
        page.push_str("\">");
        escape(&row.name, &mut page);
        page.push_str(slash);
        page.push_str("</a><td>");
        if !row.is_folder {
            // Writing to a string does not fail.
            let _ = write!(page, "{}", row.len);
        }
        page.push_str("<td>");
        page.push_str(&row.modified.map(format_seconds).unwrap_or_default());
        page.push('\n');
    }
    page.push_str("</table>\n");
    Ok(page)
}

fn row(root: &Root, folder: &[u8], name: &[u8]) -> Option<Row> {
    if !is_allowed(name) {
        return None;
    }
    let path = if folder.is_empty() {
        name.to_vec()
    } else {
        [folder, b"/", name].concat()
    };
    // Anything that cannot be opened, such as a link out of the root, is not shown either.
    let metadata = root.look(&path).ok()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return None;
    }
    let since = |time: std::time::SystemTime| time.duration_since(UNIX_EPOCH).ok();
    let modified = metadata.modified().ok().and_then(since);
    let mut uri = String::new();
    encode(name, &mut uri);
    Some(Row {
        is_folder: metadata.is_dir(),
        name: String::from_utf8_lossy(name).into_owned(),
        uri,
        len: metadata.len(),
        modified: modified.map(|since| since.as_secs()),
    })
}

/// Appends text escaped for HTML.
fn escape(text: &str, html: &mut String) {
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            character => html.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::scratch::Scratch;

    #[test]
    fn a_listing_shows_only_what_is_served_and_escapes_names() {
        let scratch = Scratch::new("listing");
        scratch.write("root/z/file", b"");
        scratch.write("root/<script>&\"'.html", b"12345");
        scratch.write("root/javascript:x", b"");
        scratch.write("root/.hidden", b"");
        scratch.write("outside", b"");
        #[cfg(unix)]
        std::os::unix::fs::symlink("../outside", scratch.path().join("root/link")).expect("a link");
        let root = Root::open(&scratch.path().join("root")).expect("a folder");
        let page = page(&root, b"").expect("a folder");
        assert!(!page.contains("<script>"), "{page}");
        assert!(!page.contains("hidden") && !page.contains("link"), "{page}");
        assert!(!page.contains("../"), "{page}");
        let link = "<a href=\"./%3Cscript%3E%26%22%27.html\">&lt;script&gt;&amp;&quot;&#39;.html</a><td>5<td>";
        assert!(page.contains(link), "{page}");
        assert!(page.contains("<a href=\"./javascript%3Ax\">"), "{page}");
        let folder = page.find("<a href=\"./z/\">z/</a>").expect("the folder");
        assert!(folder < page.find("javascript").expect("the file"));
        let page = super::page(&root, b"z").expect("a folder");
        assert!(page.contains("<a href=\"../\">"), "{page}");
        assert!(super::page(&root, b"missing").is_err());
    }
}
