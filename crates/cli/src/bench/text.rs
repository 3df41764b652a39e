//! Seeded text that compresses like real text.

use squall_yard::stats::Random;

/// Words of the made-up language.
const WORDS: usize = 4_000;

/// `len` bytes of text: words of a fixed vocabulary with frequencies by Zipf's law, in sentences
/// and lines. Deflate reduces it to about 40 %, like English prose.
pub(super) fn generate(len: usize, seed: u64) -> Vec<u8> {
    // The same language for all texts.
    let words = vocabulary(&mut Random(0x2545_f491_4f6c_dd1d));
    // A seed of 0 would yield zeroes only.
    let mut random = Random(seed | 1 << 63);
    let mut text = Vec::with_capacity(len + 32);
    let (mut line_len, mut sentence_words) = (0, 0);
    while text.len() < len {
        let word = &words[zipf(&mut random)];
        let begin = text.len();
        text.extend_from_slice(word);
        if sentence_words == 0 {
            text[begin].make_ascii_uppercase();
        }
        sentence_words += 1;
        if sentence_words > 4 && random.below(9) == 0 {
            text.push(b'.');
            sentence_words = 0;
        } else if random.below(12) == 0 {
            text.push(b',');
        }
        line_len += word.len() + 1;
        let at_end = line_len > 72;
        text.push(if at_end { b'\n' } else { b' ' });
        if at_end {
            line_len = 0;
        }
    }
    text.truncate(len);
    text
}

/// Words of two to ten letters, made of syllables.
fn vocabulary(random: &mut Random) -> Vec<Vec<u8>> {
    const CONSONANTS: &[u8] = b"ttnnsshrdlcmfpgwybvk";
    const VOWELS: &[u8] = b"eeeaaoiiou";
    let letter = |random: &mut Random, letters: &[u8]| letters[random.below(letters.len())];
    let word = |rank: usize, random: &mut Random| {
        // Frequent words are short.
        let syllables = 1 + random.below(if rank < 60 { 2 } else { 4 });
        let mut word = Vec::new();
        for _ in 0..syllables {
            word.push(letter(random, CONSONANTS));
            word.push(letter(random, VOWELS));
            if random.below(3) == 0 {
                word.push(letter(random, CONSONANTS));
            }
        }
        word
    };
    (0..WORDS).map(|rank| word(rank, random)).collect()
}

/// A rank below [`WORDS`] with a frequency of about 1/(rank + 1): the exponent is uniform.
fn zipf(random: &mut Random) -> usize {
    let uniform = random.below(1 << 20) as f64 / f64::from(1 << 20);
    let rank = (WORDS as f64).powf(uniform) - 1.0;
    (rank as usize).min(WORDS - 1)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn generated_text_compresses_like_prose() {
        let text = generate(100_000, 7);
        assert_eq!(text.len(), 100_000);
        let level = flate2::Compression::default();
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), level);
        encoder.write_all(&text).expect("memory");
        let share = encoder.finish().expect("memory").len() as f64 / text.len() as f64;
        // English prose: 0.35 to 0.45.
        assert!((0.3..0.5).contains(&share), "{share}");
    }

    #[test]
    fn a_seed_always_gives_the_same_text() {
        assert_eq!(generate(1_000, 3), generate(1_000, 3));
        assert_ne!(generate(1_000, 3), generate(1_000, 4));
    }
}
