//! Rust source without what is not code: comments, literals, test modules.

use std::collections::BTreeSet;

/// `text` with comments, strings and character literals replaced by spaces. Lines keep their numbers.
pub(crate) fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match skipped_end(&chars, at) {
            Some(end) => end,
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `None` if none begins there.
fn skipped_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    let before = at.checked_sub(1).map(|i| chars[i]);
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at)),
        'r' if !before.is_some_and(is_word) || before == Some('b') || before == Some('c') => {
            raw_string_end(chars, at)
        }
        '\'' => char_end(chars, at),
        _ => None,
    }
}

fn find(chars: &[char], from: usize, is_end: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|&i| is_end(chars[i])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let quote = find(chars, at + 1, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at - 1;
    let closes = |i: usize| chars[i] == '"' && (1..=hashes).all(|h| chars.get(i + h) == Some(&'#'));
    Some((quote + 1..chars.len()).find(|&i| closes(i)).map_or(chars.len(), |i| i + 1 + hashes))
}

/// A character literal, as opposed to a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    match (chars.get(at + 1)?, chars.get(at + 2)?) {
        ('\\', _) => Some((at + 3..chars.len()).find(|&i| chars[i] == '\'').map_or(chars.len(), |i| i + 1)),
        (_, '\'') => Some(at + 3),
        _ => None,
    }
}

/// Whether `c` can be part of a name.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Lines (from 1) of `code` on which `needle` stands as a whole: no name goes on in front of it or behind it.
pub(crate) fn lines_with(code: &str, needle: &str) -> Vec<usize> {
    let stands = |line: &str, at: usize| {
        let (before, after) = (&line[..at], &line[at + needle.len()..]);
        let joined = |inner: Option<char>, outer: Option<char>| {
            inner.is_some_and(is_word) && outer.is_some_and(is_word)
        };
        !joined(needle.chars().next(), before.chars().next_back())
            && !joined(needle.chars().next_back(), after.chars().next())
    };
    let has = |line: &str| line.match_indices(needle).any(|(at, _)| stands(line, at));
    code.lines().enumerate().filter(|(_, line)| has(line)).map(|(index, _)| index + 1).collect()
}

/// The parts behind `#[cfg(test)]`: the code without it, and the names of test modules that are files of their own.
pub(crate) fn without_tests(code: &str) -> (String, BTreeSet<String>) {
    let (mut kept, mut modules) = (code.to_owned(), BTreeSet::new());
    let attributes = ["#[cfg(test)]", "#[cfg(all(test"];
    while let Some(start) = attributes.iter().filter_map(|a| kept.find(a)).min() {
        let open = kept[start..].find(']').map_or(kept.len(), |i| start + i + 1);
        let item = &kept[open..];
        let length = item_length(item);
        let words: Vec<&str> =
            item[..length].split(|c: char| !is_word(c)).filter(|w| !w.is_empty()).collect();
        if let (Some(name), true) = (after(&words, "mod"), item[..length].ends_with(';')) {
            modules.insert(name.to_owned());
        }
        let blank = kept[start..open + length].replace(|c| c != '\n', " ");
        kept.replace_range(start..open + length, &blank);
    }
    (kept, modules)
}

/// Bytes of the item at the start of `code`: up to its closing brace, or the semicolon in front of any brace.
fn item_length(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

fn after<'a>(words: &[&'a str], word: &str) -> Option<&'a str> {
    words.iter().skip_while(|w| **w != word).nth(1).copied()
}

#[test]
fn comments_and_literals_are_not_code() {
    let text = "a /* b /* c */ d */ e // f\ng \"h \\\" i\" j r#\"k \" l\"# m 'n' o<'p> '\\'' q b\"r\" s";
    let words: Vec<String> = code(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["a", "e", "g", "j", "m", "o<'p>", "q", "b", "s"]);
    assert_eq!(code(text).lines().count(), 2);
}

#[test]
fn needles_stand_alone() {
    let code = "unsafe_code\nunsafe {\nx.unwrap()\nx.unwrap_or()\nmy_unsafe";
    assert_eq!(lines_with(code, "unsafe"), [2]);
    assert_eq!(lines_with(code, ".unwrap()"), [3]);
}

#[test]
fn test_items_are_cut_out() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { c() }\n}\nfn d() {}\n#[cfg(test)]\nmod e;\n\
                #[cfg(all(test, not(loom)))]\nfn f() {}";
    let (kept, modules) = without_tests(text);
    assert_eq!(kept.split_whitespace().collect::<String>(), "fna(){}fnd(){}");
    assert_eq!(kept.lines().count(), text.lines().count());
    assert_eq!(modules, BTreeSet::from(["e".to_owned()]));
}
