//! Content types by file name.

/// Extensions in lower case, with the type (RFC 9110 §8.3) that browsers expect. Text is UTF-8.
const TYPES: &[(&str, &str)] = &[
    ("7z", "application/x-7z-compressed"),
    ("aac", "audio/aac"),
    ("apng", "image/apng"),
    ("atom", "application/atom+xml"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("bz2", "application/x-bzip2"),
    ("cjs", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    (
        "docx",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ),
    ("epub", "application/epub+zip"),
    ("flac", "audio/flac"),
    ("geojson", "application/geo+json"),
    ("gif", "image/gif"),
    ("glb", "model/gltf-binary"),
    ("gltf", "model/gltf+json"),
    ("gz", "application/gzip"),
    ("heic", "image/heic"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("ics", "text/calendar; charset=utf-8"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("log", "text/plain; charset=utf-8"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/mp4"),
    ("m4s", "video/iso.segment"),
    ("m4v", "video/mp4"),
    ("map", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mid", "audio/midi"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mkv", "video/matroska"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpd", "application/dash+xml"),
    ("mpeg", "video/mpeg"),
    ("odt", "application/vnd.oasis.opendocument.text"),
    ("oga", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    (
        "pptx",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ),
    ("rss", "application/rss+xml"),
    ("rtf", "application/rtf"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("ts", "video/mp2t"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("weba", "audio/webm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    (
        "xlsx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// The type of a file whose name has no known extension.
const UNKNOWN: &str = "application/octet-stream";

/// The longest extension of the table.
const LONGEST: usize = 11;

/// The content type of a file, by the extension of its name.
pub(super) fn content_type(name: &[u8]) -> &'static str {
    let name = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    let Some(dot) = name.iter().rposition(|&byte| byte == b'.') else {
        return UNKNOWN;
    };
    let extension = &name[dot + 1..];
    let mut lower = [0; LONGEST];
    let Some(lower) = lower.get_mut(..extension.len()) else {
        return UNKNOWN;
    };
    lower.copy_from_slice(extension);
    lower.make_ascii_lowercase();
    TYPES
        .binary_search_by(|(known, _)| known.as_bytes().cmp(lower))
        .map_or(UNKNOWN, |at| TYPES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_searched_and_every_row_is_found() {
        assert!(TYPES.is_sorted_by(|a, b| a.0 < b.0));
        for (extension, content_type_) in TYPES {
            assert!(extension.len() <= LONGEST, "{extension}");
            let name = format!("a/b.{}", extension.to_uppercase());
            assert_eq!(content_type(name.as_bytes()), *content_type_);
        }
    }

    #[test]
    fn an_unknown_extension_is_served_as_octet_stream() {
        for name in ["a", "a.", "html", "a.html/b", "a.unheard-of-extension", ""] {
            assert_eq!(content_type(name.as_bytes()), UNKNOWN, "{name:?}");
        }
    }
}
