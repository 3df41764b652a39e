//! The film: segments of audio, and of video at changing bitrates, as with DASH (ISO/IEC 23009-1).

use crate::client::Folder;

/// Playing time of a segment.
pub(super) const SEGMENT_S: u64 = 2;
/// The bitrate of audio.
const AUDIO_KBIT_S: u64 = 64;
/// The bitrates of video in hundredths of the mean: up and down again, one step per segment.
const LADDER: [u64; 8] = [25, 50, 100, 150, 200, 150, 75, 50];
/// The time of all steps.
pub(super) const LADDER_S: u64 = LADDER.len() as u64 * SEGMENT_S;
/// Number of segments per bitrate, all different. The film then starts over.
const SEGMENTS: usize = 8;

/// A segment, as it must arrive.
#[derive(Debug)]
pub(super) struct Segment {
    /// Its path, which starts with a slash.
    pub(super) path: String,
    pub(super) content: Vec<u8>,
}

/// All segments.
#[derive(Debug)]
pub(super) struct Film {
    audio: Vec<Segment>,
    /// By step of the ladder.
    video: Vec<Vec<Segment>>,
}

impl Film {
    /// A film whose video has this mean bitrate.
    pub(super) fn new(video_kbit_s: u64) -> Self {
        let of_rate = |kind: &str, kbit_s: u64| {
            (0..SEGMENTS)
                .map(|number| Segment::new(kind, kbit_s, number))
                .collect()
        };
        let video = LADDER.iter().map(|percent| video_kbit_s * percent / 100);
        Self {
            audio: of_rate("audio", AUDIO_KBIT_S),
            video: (0..)
                .zip(video)
                .map(|(step, rate)| of_rate(&format!("video{step}"), rate))
                .collect(),
        }
    }

    /// Writes all segments below a folder.
    pub(super) fn write(&self, folder: &Folder) {
        for segment in self.segments() {
            folder.write(segment.path.trim_start_matches('/'), &segment.content);
        }
    }

    /// Audio and video of the segment with this number, for a viewer who began `offset` steps up
    /// the ladder.
    pub(super) fn at(&self, number: usize, offset: usize) -> [&Segment; 2] {
        let step = &self.video[(number + offset) % self.video.len()];
        [&self.audio[number % SEGMENTS], &step[number % SEGMENTS]]
    }

    /// The length of the segment with this path.
    pub(super) fn len_of(&self, path: &str) -> Option<usize> {
        let mut segments = self.segments();
        segments.find_map(|one| (one.path == path).then_some(one.content.len()))
    }

    fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.audio.iter().chain(self.video.iter().flatten())
    }
}

impl Segment {
    fn new(kind: &str, kbit_s: u64, number: usize) -> Self {
        let path = format!("/{kind}-{kbit_s}k-{number}.m4s");
        let len = kbit_s * 1_000 / 8 * SEGMENT_S;
        // Differs from segment to segment and from place to place: data that is missing, repeated,
        // out of order or from another segment does not compare equal.
        let mut state = path.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut content = Vec::with_capacity(len as usize + 8);
        while (content.len() as u64) < len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            content.extend_from_slice(&state.to_le_bytes());
        }
        content.truncate(len as usize);
        Self { path, content }
    }
}
