//! Rust text split into tokens: as much of the language as the checks need.
//!
//! Comments are kept separately, by line, to find SAFETY comments. A literal becomes one empty
//! token, so nothing in a string is mistaken for code.

/// A token and the line, from 1, on which it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Word(String),
    /// `::`
    PathSeparator,
    /// Any other single character.
    Mark(char),
    /// A string, character or number.
    Literal,
    Lifetime,
}

impl Token {
    pub(crate) fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn is(&self, word: &str) -> bool {
        self.word() == Some(word)
    }

    pub(crate) fn is_mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// One Rust file.
pub(crate) struct Source {
    pub(crate) tokens: Vec<Token>,
    /// The comments of each line; index 0 is line 1.
    comments: Vec<String>,
    /// The lines without comments and without the insides of literals.
    code: Vec<String>,
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let mut lexer = Lexer {
            rest: text.chars().collect::<Vec<_>>().into_iter().peekable(),
            line: 1,
            tokens: Vec::new(),
            comments: vec![String::new()],
            code: vec![String::new()],
        };
        lexer.run();
        Self {
            tokens: lexer.tokens,
            comments: lexer.comments,
            code: lexer.code,
        }
    }

    /// The comments on this line (from 1), without their slashes.
    pub(crate) fn comment(&self, line: usize) -> &str {
        line.checked_sub(1)
            .and_then(|i| self.comments.get(i))
            .map_or("", String::as_str)
    }

    /// The code on this line (from 1), trimmed.
    pub(crate) fn code(&self, line: usize) -> &str {
        line.checked_sub(1)
            .and_then(|i| self.code.get(i))
            .map_or("", |code| code.trim())
    }

    /// The tokens without the items that are compiled for tests only.
    pub(crate) fn without_tests(&self) -> Vec<Token> {
        let mut kept = Vec::new();
        let mut at = 0;
        while let Some(token) = self.tokens.get(at) {
            match test_attribute_end(&self.tokens[at..]) {
                Some(len) => at += len + item_len(&self.tokens[at + len..]),
                None => {
                    kept.push(token.clone());
                    at += 1;
                }
            }
        }
        kept
    }
}

/// If these tokens start with `#[cfg(…test…)]` or `#[test]`, the length of that attribute.
fn test_attribute_end(tokens: &[Token]) -> Option<usize> {
    let len = attribute_len(tokens)?;
    let inside = &tokens[2..len - 1];
    let names = |word| inside.iter().any(|token| token.is(word));
    let first = inside.first()?;
    (first.is("test") || first.is("cfg") && names("test") && !names("not")).then_some(len)
}

/// The length of the outer attribute that these tokens start with.
fn attribute_len(tokens: &[Token]) -> Option<usize> {
    (tokens.first()?.is_mark('#') && tokens.get(1)?.is_mark('['))
        .then(|| 1 + group_len(&tokens[1..]))
}

/// The length of the item that these tokens start with, attributes included.
fn item_len(tokens: &[Token]) -> usize {
    let mut at = 0;
    while let Some(len) = attribute_len(&tokens[at..]) {
        at += len;
    }
    let is_use = tokens[at..].iter().take(6).any(|token| token.is("use"));
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Mark(';' | ',') => return at + 1,
            // The end of the enclosing block: the attribute preceded nothing.
            Kind::Mark('}' | ')' | ']') => return at,
            Kind::Mark('{' | '(' | '[') => {
                let body = token.is_mark('{') && !is_use;
                at += group_len(&tokens[at..]);
                if body {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

/// The length of the bracketed group that these tokens start with.
pub(crate) fn group_len(tokens: &[Token]) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Mark('{' | '(' | '[') => depth += 1,
            Kind::Mark('}' | ')' | ']') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

struct Lexer {
    rest: std::iter::Peekable<std::vec::IntoIter<char>>,
    line: usize,
    tokens: Vec<Token>,
    comments: Vec<String>,
    code: Vec<String>,
}

impl Lexer {
    /// The next character, with the line counted.
    fn take(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.line += 1;
            self.comments.push(String::new());
            self.code.push(String::new());
        }
        Some(c)
    }

    /// The next character, if it is the expected one.
    fn take_if(&mut self, wanted: char) -> bool {
        self.rest.peek() == Some(&wanted) && self.take().is_some()
    }

    fn push(&mut self, kind: Kind, line: usize) {
        self.tokens.push(Token { kind, line });
    }

    fn show(&mut self, c: char) {
        if let Some(code) = self.code.last_mut() {
            code.push(c);
        }
    }

    fn run(&mut self) {
        while let Some(c) = self.take() {
            let line = self.line;
            match c {
                '/' if self.take_if('/') => self.line_comment(),
                '/' if self.take_if('*') => self.block_comment(),
                '"' => self.string(line),
                '\'' => self.quote(line),
                c if c.is_whitespace() => {
                    if c != '\n' {
                        self.show(' ');
                    }
                }
                c if c.is_ascii_digit() => self.number(line),
                c if is_word(c) => self.word(c, line),
                ':' if self.take_if(':') => {
                    self.show(':');
                    self.show(':');
                    self.push(Kind::PathSeparator, line);
                }
                c => {
                    self.show(c);
                    self.push(Kind::Mark(c), line);
                }
            }
        }
    }

    fn line_comment(&mut self) {
        while let Some(c) = self.rest.next_if(|&c| c != '\n') {
            self.comment(c);
        }
    }

    fn comment(&mut self, c: char) {
        if let Some(comment) = self.comments.last_mut() {
            comment.push(c);
        }
    }

    /// Block comments nest.
    fn block_comment(&mut self) {
        let mut depth = 1;
        while let Some(c) = self.take() {
            if c == '*' && self.take_if('/') {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            } else if c == '/' && self.take_if('*') {
                depth += 1;
            } else if c != '\n' {
                self.comment(c);
            }
        }
    }

    /// The rest of a string that ends at the next quote without a backslash before it.
    fn string(&mut self, line: usize) {
        while let Some(c) = self.take() {
            match c {
                '\\' => {
                    self.take();
                }
                '"' => break,
                _ => {}
            }
        }
        self.literal(line);
    }

    /// The rest of a raw string, after its `r`.
    fn raw_string(&mut self, line: usize) {
        let mut hashes = 0;
        while self.take_if('#') {
            hashes += 1;
        }
        self.take_if('"');
        while let Some(c) = self.take() {
            if c == '"' && (0..hashes).all(|_| self.take_if('#')) {
                break;
            }
        }
        self.literal(line);
    }

    fn literal(&mut self, line: usize) {
        self.show('"');
        self.push(Kind::Literal, line);
    }

    /// A character, or a lifetime.
    fn quote(&mut self, line: usize) {
        match self.take() {
            Some('\\') => {
                self.take();
                while let Some(c) = self.take() {
                    if c == '\'' {
                        break;
                    }
                }
                self.literal(line);
            }
            Some(_) if self.take_if('\'') => self.literal(line),
            Some(c) if is_word(c) => {
                while self.rest.next_if(|&c| is_word(c)).is_some() {}
                self.push(Kind::Lifetime, line);
            }
            _ => self.literal(line),
        }
    }

    /// A number; its dot and exponent need no care, since no check uses them.
    fn number(&mut self, line: usize) {
        while self.rest.next_if(|&c| is_word(c)).is_some() {}
        self.literal(line);
    }

    fn word(&mut self, first: char, line: usize) {
        let mut word = String::from(first);
        while let Some(c) = self.rest.next_if(|&c| is_word(c)) {
            word.push(c);
        }
        // `r#"…"#` is a string, `r#type` an identifier.
        let next = self.rest.peek().copied();
        let opens = self.rest.clone().find(|&c| c != '#') == Some('"');
        match (word.as_str(), next) {
            ("b" | "c", Some('"')) => {
                self.take();
                return self.string(line);
            }
            ("b", Some('\'')) => {
                self.take();
                return self.quote(line);
            }
            ("r" | "br" | "cr", Some('"')) | ("br" | "cr", Some('#')) => {
                return self.raw_string(line);
            }
            ("r", Some('#')) if opens => return self.raw_string(line),
            // It keeps its mark, so it is not a keyword.
            ("r", Some('#')) => {
                word.extend(self.take());
                while let Some(c) = self.rest.next_if(|&c| is_word(c)) {
                    word.push(c);
                }
            }
            _ => {}
        }
        for c in word.chars() {
            self.show(c);
        }
        self.push(Kind::Word(word), line);
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let source = Source::new(text);
        source
            .tokens
            .iter()
            .filter_map(|token| token.word().map(str::to_owned))
            .collect()
    }

    #[test]
    fn literals_and_comments_contain_no_code() {
        assert_eq!(words(r#"a "unsafe \" unsafe" b"#), ["a", "b"]);
        assert_eq!(words("a r#\"unsafe \" unsafe\"# b"), ["a", "b"]);
        assert_eq!(words("a br##\"x\"# unsafe\"## b"), ["a", "b"]);
        assert_eq!(words("a b\"unsafe\" c\"unsafe\" d"), ["a", "d"]);
        assert_eq!(
            words("a '\"' b '\\'' c b'\"' d '\\u{1f600}' e"),
            ["a", "b", "c", "d", "e"]
        );
        assert_eq!(
            words("a // unsafe\nb /* unsafe /* unsafe */ unsafe */ c"),
            ["a", "b", "c"]
        );
        assert_eq!(
            words("fn f<'a>(x: &'a str) -> &'static str"),
            ["fn", "f", "x", "str", "str"]
        );
        assert_eq!(words("r#type 0x1f_u8 1.5e3"), ["r#type"]);
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let source = Source::new("\"a\nb\" /* c\nd */ e // f\n'\\n' g");
        let e = source.tokens.iter().find(|token| token.is("e")).unwrap();
        let g = source.tokens.iter().find(|token| token.is("g")).unwrap();
        assert_eq!((e.line, g.line), (3, 4));
        assert_eq!((source.comment(2), source.comment(3)), (" c", "d  f"));
        assert_eq!(
            (source.code(3), source.code(4), source.code(5)),
            ("e", "\" g", "")
        );
    }

    #[test]
    fn test_items_are_removed() {
        let kept = |text: &str| {
            let tokens = Source::new(text).without_tests();
            tokens
                .iter()
                .filter_map(|token| token.word().map(str::to_owned))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            kept("a; #[cfg(test)] mod tests { fn f() { x } } b"),
            ["a", "b"]
        );
        assert_eq!(kept("#[cfg(test)] mod tests; b"), ["b"]);
        assert_eq!(kept("#[cfg(test)] pub(crate) use a::{b, c}; d"), ["d"]);
        assert_eq!(kept("#[test] #[ignore] fn f() -> [u8; 2] { x } b"), ["b"]);
        assert_eq!(kept("#[cfg(all(test, unix))] fn f() {} b"), ["b"]);
        assert_eq!(
            kept("#[cfg(not(test))] fn f() {}"),
            ["cfg", "not", "test", "fn", "f"]
        );
        assert_eq!(
            kept("#[derive(Debug)] struct S;"),
            ["derive", "Debug", "struct", "S"]
        );
        assert_eq!(kept("enum E { #[cfg(test)] A, B }"), ["enum", "E", "B"]);
    }
}
