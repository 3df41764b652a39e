//! A file as it is sent: its fields, and its content in memory or as an open descriptor; and the
//! cache of files.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderValue;

use super::conditional::{Validators, format_seconds};
use super::encoding::{self, Coding};
use super::reply::Slot;
use super::root::Root;
use super::types::content_type;

/// Files up to this size are kept in memory: over HTTP/3, one of 1 MB then costs the server 0.64 of
/// reading it from the page cache each time (Xeon, Emerald Rapids; `squall perf --http`).
const SMALL: u64 = 1 << 20;

/// Rough memory of an entry in addition to its content.
const OVERHEAD: usize = 1 << 10;

/// Larger files that are kept open.
const OPEN_FILES: usize = 256;

/// How long a file is served without being checked again.
const FRESH: Duration = Duration::from_secs(1);

/// Distinguishes versions of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    len: u64,
    /// Nanoseconds since 1970.
    modified: i128,
    /// Time of the last change of any kind, if the system reports it.
    changed: i128,
    inode: u64,
    device: u64,
}

impl Signature {
    /// `None` for anything but a file.
    fn of(metadata: &Metadata) -> Option<Self> {
        if !metadata.is_file() {
            return None;
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            let nanoseconds =
                |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
            Some(Self {
                len: metadata.len(),
                modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
                changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
                inode: metadata.ino(),
                device: metadata.dev(),
            })
        }
        #[cfg(not(unix))]
        {
            let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            Some(Self {
                len: metadata.len(),
                modified: i128::try_from(since.as_nanos()).unwrap_or_default(),
                changed: 0,
                inode: 0,
                device: 0,
            })
        }
    }

    /// A strong validator (RFC 9110 §8.8.1): it changes with the file, time or size.
    fn etag(&self) -> String {
        format!("\"{:x}-{:x}-{:x}\"", self.len, self.modified, self.inode)
    }

    /// Whole seconds since 1970, unless that is in the future (RFC 9110 §8.8.2.1) or before 1970.
    fn modified_seconds(&self) -> Option<u64> {
        let seconds = u64::try_from(self.modified.div_euclid(1_000_000_000)).ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        (seconds <= now.as_secs()).then_some(seconds)
    }
}

/// Where the content is.
#[derive(Debug)]
pub(super) enum Content {
    Memory(Bytes),
    Disk(Arc<File>),
}

/// A file, or an encoded sibling of it, with the fields of a complete response.
#[derive(Debug)]
pub(super) struct Form {
    signature: Signature,
    pub(super) content: Content,
    pub(super) len: u64,
    pub(super) content_length: HeaderValue,
    pub(super) content_encoding: Option<HeaderValue>,
    pub(super) etag: HeaderValue,
    pub(super) last_modified: Option<HeaderValue>,
    modified_seconds: Option<u64>,
    /// The complete response as HTTP/3 sends it.
    pub(super) reply: Slot,
}

impl Form {
    /// Opens a file and reads it if it is small. `None` if it is anything else, such as a folder.
    fn load(root: &Root, name: &[u8], coding: Coding) -> io::Result<Option<Self>> {
        let mut file = root.find(name)?;
        let Some(signature) = Signature::of(&file.metadata()?) else {
            return Ok(None);
        };
        let content = if signature.len <= SMALL {
            let mut bytes = Vec::with_capacity(signature.len as usize);
            (&mut file).take(signature.len).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != signature.len {
                let why = "the file became shorter while it was read";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            Content::Memory(bytes.into())
        } else {
            Content::Disk(Arc::new(file))
        };
        let modified_seconds = signature.modified_seconds();
        let value = |text: String| HeaderValue::try_from(text).map_err(io::Error::other);
        Ok(Some(Self {
            content,
            len: signature.len,
            content_length: signature.len.into(),
            content_encoding: coding.token().map(HeaderValue::from_static),
            etag: value(signature.etag())?,
            last_modified: modified_seconds
                .map(format_seconds)
                .map(value)
                .transpose()?,
            modified_seconds,
            reply: Slot::default(),
            signature,
        }))
    }

    pub(super) fn validators(&self) -> Validators<'_> {
        Validators {
            etag: self.etag.to_str().unwrap_or_default(),
            modified: self.modified_seconds,
        }
    }
}

/// The file that a path leads to, with its encoded siblings.
#[derive(Debug)]
pub(super) struct Entry {
    key: Box<[u8]>,
    /// The file's name below the root, which differs from the key for a folder's index.
    name: Box<[u8]>,
    /// By the index in [`Coding::ALL`].
    forms: [Option<Form>; 4],
    varies: bool,
    pub(super) content_type: HeaderValue,
    /// Milliseconds on the cache's clock.
    checked: AtomicU64,
    used: AtomicBool,
}

impl Entry {
    /// Opens a file and its siblings. `None` if it is anything but a file.
    ///
    /// # Errors
    /// The system's, for the file itself; an unreadable sibling counts as absent.
    pub(super) fn load(root: &Root, key: &[u8], name: &[u8]) -> io::Result<Option<Self>> {
        let Some(identity) = Form::load(root, name, Coding::Identity)? else {
            return Ok(None);
        };
        let mut forms = [None, None, None, Some(identity)];
        for (form, coding) in forms.iter_mut().zip(Coding::ALL) {
            if coding != Coding::Identity {
                let sibling = Form::load(root, &sibling(name, coding), coding);
                *form = sibling.ok().flatten();
            }
        }
        Ok(Some(Self {
            key: key.into(),
            name: name.into(),
            varies: forms.iter().flatten().count() > 1,
            forms,
            content_type: HeaderValue::from_static(content_type(name)),
            checked: AtomicU64::new(0),
            used: AtomicBool::new(false),
        }))
    }

    /// A form, if it exists; the file itself always does.
    pub(super) fn form(&self, coding: Coding) -> Option<&Form> {
        self.forms[coding as usize].as_ref()
    }

    /// The form for a client that accepts these codings; never `None`, since the file itself always
    /// exists.
    pub(super) fn choose<'a>(&self, accepted: impl Iterator<Item = &'a [u8]>) -> Option<&Form> {
        let coding = if self.varies {
            encoding::choose(accepted, |coding| self.form(coding).is_some())
        } else {
            Coding::Identity
        };
        self.form(coding)
    }

    /// Whether the response depends on Accept-Encoding.
    pub(super) fn varies(&self) -> bool {
        self.varies
    }

    /// Whether the files are still those that were read. This costs four look-ups.
    fn is_current(&self, root: &Root) -> bool {
        self.forms.iter().zip(Coding::ALL).all(|(form, coding)| {
            let now = root.look(&sibling(&self.name, coding)).ok();
            let now = now.as_ref().and_then(Signature::of);
            now == form.as_ref().map(|form| form.signature)
        })
    }

    /// Number of bytes in memory, and of open files.
    fn cost(&self) -> (usize, usize) {
        let mut cost = (OVERHEAD + 2 * self.key.len(), 0);
        for form in self.forms.iter().flatten() {
            match &form.content {
                Content::Memory(bytes) => cost.0 += bytes.len(),
                Content::Disk(_) => cost.1 += 1,
            }
        }
        cost
    }
}

/// The name of an encoded sibling.
fn sibling(name: &[u8], coding: Coding) -> Vec<u8> {
    [name, coding.suffix().as_bytes()].concat()
}

/// Recently sent files, bounded in bytes and in open files. Eviction is by second chance: the
/// oldest file that has not been used since it was last considered.
#[derive(Debug)]
pub(super) struct Cache {
    inner: RwLock<Inner>,
    started: Instant,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<Box<[u8]>, Arc<Entry>>,
    ring: VecDeque<Arc<Entry>>,
    bytes: usize,
    files: usize,
}

impl Cache {
    /// A cache of up to this many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            inner: RwLock::default(),
            started: Instant::now(),
            bytes,
        }
    }

    /// The cached entry for a path, if it was found unchanged within the last second. After that,
    /// one request checks the files, and forgets them if they differ.
    pub(super) fn get(&self, root: &Root, key: &[u8]) -> Option<Arc<Entry>> {
        let entry = {
            let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(inner.by_key.get(key)?)
        };
        // Not written if already set: a file that everyone requests is shared by all cores.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        let (now, checked) = (self.now(), entry.checked.load(Ordering::Relaxed));
        if now.saturating_sub(checked) < FRESH.as_millis() as u64 {
            return Some(entry);
        }
        let is_ours = entry
            .checked
            .compare_exchange(checked, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_ours && !entry.is_current(root) {
            self.forget(&entry);
            return None;
        }
        Some(entry)
    }

    /// Keeps a loaded entry if it fits.
    pub(super) fn insert(&self, entry: Entry) -> Arc<Entry> {
        entry.checked.store(self.now(), Ordering::Relaxed);
        let entry = Arc::new(entry);
        let (bytes, files) = entry.cost();
        if bytes <= self.bytes / 4 {
            let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
            inner.remove(&entry.key);
            inner.bytes += bytes;
            inner.files += files;
            inner.by_key.insert(entry.key.clone(), Arc::clone(&entry));
            inner.ring.push_back(Arc::clone(&entry));
            while inner.bytes > self.bytes || inner.files > OPEN_FILES {
                inner.evict();
            }
        }
        entry
    }

    fn forget(&self, entry: &Arc<Entry>) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let is_same = |held: &Arc<Entry>| Arc::ptr_eq(held, entry);
        if inner.by_key.get(&entry.key).is_some_and(is_same) {
            inner.remove(&entry.key);
        }
    }

    /// Milliseconds, where zero is long ago.
    fn now(&self) -> u64 {
        (self.started.elapsed() + FRESH).as_millis() as u64
    }
}

impl Inner {
    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.by_key.remove(key) {
            let (bytes, files) = entry.cost();
            self.bytes -= bytes;
            self.files -= files;
            // Rare: a file has changed.
            self.ring.retain(|held| !Arc::ptr_eq(held, &entry));
        }
    }

    /// Evicts one entry; entries used since last considered go to the end instead.
    fn evict(&mut self) {
        while let Some(entry) = self.ring.pop_front() {
            if entry.used.swap(false, Ordering::Relaxed) {
                self.ring.push_back(entry);
                continue;
            }
            self.by_key.remove(&entry.key);
            let (bytes, files) = entry.cost();
            self.bytes -= bytes;
            self.files -= files;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::scratch::Scratch;

    fn load(cache: &Cache, root: &Root, name: &str) -> Arc<Entry> {
        let entry = Entry::load(root, name.as_bytes(), name.as_bytes());
        cache.insert(entry.expect("readable").expect("a file"))
    }

    /// As if a second had passed.
    fn age(entry: &Entry) {
        entry.checked.store(0, Ordering::Relaxed);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_recently_used_entries() {
        let scratch = Scratch::new("cache");
        let root = Root::open(scratch.path()).expect("a folder");
        let cache = Cache::new(64 << 10);
        let names: Vec<_> = (0..40).map(|n| format!("file{n}")).collect();
        for name in &names {
            scratch.write(name, &[1; 3 << 10]);
            load(&cache, &root, name);
            // The first one is requested all the time.
            assert!(cache.get(&root, b"file0").is_some(), "{name}");
        }
        let inner = cache.inner.read().expect("no panic");
        assert!(inner.bytes <= 64 << 10);
        assert_eq!(inner.by_key.len(), inner.ring.len());
        assert!(
            (10..=16).contains(&inner.ring.len()),
            "{}",
            inner.ring.len()
        );
        let sum: usize = inner.ring.iter().map(|entry| entry.cost().0).sum();
        assert_eq!(inner.bytes, sum);
    }

    #[test]
    fn open_files_are_bounded() {
        let scratch = Scratch::new("open-files");
        let root = Root::open(scratch.path()).expect("a folder");
        let cache = Cache::new(64 << 20);
        scratch.write("large", &vec![1; SMALL as usize + 1]);
        for n in 0..OPEN_FILES + 10 {
            let key = format!("key{n}");
            let entry = Entry::load(&root, key.as_bytes(), b"large");
            cache.insert(entry.expect("readable").expect("a file"));
        }
        let inner = cache.inner.read().expect("no panic");
        assert_eq!(inner.files, OPEN_FILES);
        assert_eq!(inner.by_key.len(), OPEN_FILES);
    }

    #[test]
    fn a_changed_file_is_reloaded() {
        let scratch = Scratch::new("changes");
        let root = Root::open(scratch.path()).expect("a folder");
        let cache = Cache::new(64 << 10);
        scratch.write("a", b"one");
        let entry = load(&cache, &root, "a");
        age(&entry);
        assert!(cache.get(&root, b"a").is_some());
        scratch.write("a", b"three");
        // Not checked again within a second.
        assert!(cache.get(&root, b"a").is_some());
        age(&entry);
        assert!(cache.get(&root, b"a").is_none());
        let entry = load(&cache, &root, "a");
        // A new sibling counts as well.
        scratch.write("a.br", b"x");
        age(&entry);
        assert!(cache.get(&root, b"a").is_none());
        let entry = load(&cache, &root, "a");
        assert!(entry.varies());
        std::fs::remove_file(scratch.path().join("a")).expect("the file exists");
        age(&entry);
        assert!(cache.get(&root, b"a").is_none());
        assert_eq!(cache.inner.read().expect("no panic").bytes, 0);
    }

    #[test]
    fn the_entity_tag_depends_on_the_file_and_its_modification_time() {
        let scratch = Scratch::new("tags");
        let root = Root::open(scratch.path()).expect("a folder");
        scratch.write("a", b"same");
        scratch.write("b", b"same");
        let cache = Cache::new(64 << 10);
        let tag = |name| {
            let entry = load(&cache, &root, name);
            entry.form(Coding::Identity).expect("always").etag.clone()
        };
        let first = tag("a");
        assert_eq!(first, tag("a"));
        assert_ne!(first, tag("b"));
        let file = File::options().write(true).open(scratch.path().join("a"));
        let later = SystemTime::now() + Duration::from_nanos(100);
        file.and_then(|file| file.set_modified(later))
            .expect("ours");
        assert_ne!(first, tag("a"));
    }
}
