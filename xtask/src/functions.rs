//! The functions of a Rust file: where they are, how long they are, and their parameters.

use crate::source::{Kind, Token, group_len};

/// A function that is not for tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The type of the `impl` that contains it.
    pub(crate) owner: Option<String>,
    /// Where its signature starts.
    pub(crate) line: usize,
    /// From the signature to the closing brace, both included.
    pub(crate) lines: usize,
    /// Parameters besides `self`.
    pub(crate) parameters: usize,
    /// Whether it is `pub` without restriction.
    pub(crate) is_public: bool,
}

impl Function {
    /// `Type::name`, or `name`.
    pub(crate) fn path(&self) -> String {
        match &self.owner {
            Some(owner) => format!("{owner}::{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// The functions with a body in these tokens, nested ones included.
pub(crate) fn functions_of(tokens: &[Token]) -> Vec<Function> {
    let mut functions = Vec::new();
    // `impl` blocks that are open, with the token at which each ends.
    let mut owners: Vec<(usize, String)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        owners.retain(|&(end, _)| at < end);
        if token.is("impl")
            && let Some((body, owner)) = implemented(tokens, at)
        {
            owners.push((body + group_len(&tokens[body..]), owner));
        }
        let name = tokens.get(at + 1).and_then(Token::word);
        let (Some(name), true) = (name, token.is("fn")) else {
            continue;
        };
        let Some(list) = parameters_at(tokens, at + 2) else {
            continue;
        };
        let list_end = list + group_len(&tokens[list..]);
        let body = tokens[list_end..]
            .iter()
            .position(|token| token.is_mark('{') || token.is_mark(';'))
            .map(|offset| list_end + offset)
            .filter(|&body| tokens[body].is_mark('{'));
        let Some(body) = body else {
            continue;
        };
        let last = body + group_len(&tokens[body..]) - 1;
        functions.push(Function {
            name: name.to_owned(),
            owner: owners.last().map(|(_, owner)| owner.clone()),
            line: token.line,
            lines: tokens[last].line + 1 - token.line,
            parameters: count_of_list(&tokens[list..list_end])
                - usize::from(takes_self(tokens, list)),
            is_public: is_public(&tokens[..at]),
        });
    }
    functions
}

/// How many fields the struct with this name has, if it is defined in these tokens.
pub(crate) fn fields_of(tokens: &[Token], name: &str) -> Option<usize> {
    let at = tokens
        .windows(3)
        .position(|t| t[0].is("struct") && t[1].is(name) && !t[2].is_mark(';'))?;
    let body = at + tokens[at..].iter().position(|token| token.is_mark('{'))?;
    Some(count_of_list(
        &tokens[body..body + group_len(&tokens[body..])],
    ))
}

/// Where the body of the `impl` at `at` begins, and the type that it is for.
fn implemented(tokens: &[Token], at: usize) -> Option<(usize, String)> {
    let start = after_generics(tokens, at + 1);
    let body = start
        + tokens[start..]
            .iter()
            .position(|token| token.is_mark('{') || token.is_mark(';') || token.is_mark(')'))?;
    if !tokens[body].is_mark('{') {
        return None;
    }
    let header = &tokens[start..body];
    let ty = match header.iter().position(|token| token.is("for")) {
        Some(of_trait) => &header[of_trait + 1..],
        None => header,
    };
    // The last name of the path, before its own generics.
    let path_end = ty
        .iter()
        .position(|token| token.is_mark('<') || token.is("where"))
        .unwrap_or(ty.len());
    let name = ty[..path_end].iter().rev().find_map(Token::word)?;
    Some((body, name.to_owned()))
}

/// Where the parameter list begins of the function whose name ends at `at`.
fn parameters_at(tokens: &[Token], at: usize) -> Option<usize> {
    let at = after_generics(tokens, at);
    tokens.get(at)?.is_mark('(').then_some(at)
}

/// The position after the list of generics at `at`, if there is one.
fn after_generics(tokens: &[Token], at: usize) -> usize {
    if !tokens.get(at).is_some_and(|token| token.is_mark('<')) {
        return at;
    }
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        // The `>` of an arrow closes nothing.
        let arrow = i > 0 && tokens[i - 1].is_mark('-');
        if token.is_mark('<') {
            depth += 1;
        } else if token.is_mark('>') && !arrow {
            depth -= 1;
            if depth == 0 {
                return i + 1;
            }
        }
    }
    tokens.len()
}

/// The number of comma-separated items in this bracketed list.
fn count_of_list(list: &[Token]) -> usize {
    let inside = &list[1..list.len() - 1];
    let (mut count, mut angles, mut at, mut empty) = (0, 0_usize, 0, true);
    while let Some(token) = inside.get(at) {
        let arrow = at > 0 && inside[at - 1].is_mark('-');
        if token.is_mark('<') {
            angles += 1;
        } else if token.is_mark('>') && !arrow {
            angles = angles.saturating_sub(1);
        }
        if token.is_mark(',') && angles == 0 {
            count += usize::from(!empty);
            empty = true;
        } else {
            empty = false;
        }
        let opens = token.is_mark('(') || token.is_mark('[') || token.is_mark('{');
        at += if opens { group_len(&inside[at..]) } else { 1 };
    }
    count + usize::from(!empty)
}

/// Whether the parameter list at `list` begins with `self`, `&self`, `&'a mut self`, `mut self` or
/// `self: T`.
fn takes_self(tokens: &[Token], list: usize) -> bool {
    tokens[list + 1..]
        .iter()
        .find(|token| !(token.is_mark('&') || token.is("mut") || token.kind == Kind::Lifetime))
        .is_some_and(|token| token.is("self"))
}

/// Whether the tokens before a `fn` make it `pub` everywhere.
fn is_public(before: &[Token]) -> bool {
    before
        .iter()
        .rev()
        .take_while(|token| {
            ["const", "async", "unsafe", "extern", "pub"]
                .iter()
                .any(|word| token.is(word))
                || token.kind == Kind::Literal
        })
        .any(|token| token.is("pub"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Source;

    fn found(text: &str) -> Vec<(String, usize, usize, usize, bool)> {
        functions_of(&Source::new(text).without_tests())
            .into_iter()
            .map(|f| (f.path(), f.line, f.lines, f.parameters, f.is_public))
            .collect()
    }

    #[test]
    fn functions_are_found_with_their_length_and_parameters() {
        let text = "pub fn a() {}\n\
            impl<T: Fn(u8) -> u8> x::S<T> {\n\
            pub(crate) const fn b<F: Fn(A, B) -> C>(&self, (x, y): (u8, u8), f: F,) -> u8 {\n\
            fn c(m: Map<A, B>, [d, e]: [u8; 2]) {}\n\
            }\n\
            }\n\
            impl Trait for dyn S<u8> where T: X {\n\
            fn d(&'a mut self) { }\n\
            }\n\
            trait T { fn e(&self); }\n\
            pub async unsafe fn f(a: impl Iterator<Item = (A, B)>) {\n}\n\
            type F = fn(u8, u8);\n\
            #[cfg(test)] mod tests { fn g() {} }";
        let function = |path: &str, line, lines, parameters, is_public| {
            (path.to_owned(), line, lines, parameters, is_public)
        };
        assert_eq!(
            found(text),
            [
                function("a", 1, 1, 0, true),
                function("S::b", 3, 3, 2, false),
                function("S::c", 4, 1, 2, false),
                function("S::d", 8, 1, 0, false),
                function("f", 11, 2, 1, true),
            ]
        );
    }

    #[test]
    fn fields_are_counted() {
        let text =
            "struct A; struct B<T: X<Y>> { pub a: M<K, V>, #[x] b: [u8; 2], c: fn(A, B) -> C }";
        let tokens = Source::new(text).without_tests();
        assert_eq!(fields_of(&tokens, "B"), Some(3));
        assert_eq!(fields_of(&tokens, "C"), None);
    }
}
