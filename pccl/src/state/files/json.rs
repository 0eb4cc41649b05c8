//! JSON, as far as headers of safetensors have it: strings, whole numbers, lists, objects. Whatever the bytes are,
//! reading them ends, and allocates no more than a small multiple of them.

/// How deep values may lie in each other; headers need three.
const DEPTH_MAX: usize = 8;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Json {
    Text(String),
    Number(u64),
    List(Vec<Self>),
    /// In the order of the file, each key once.
    Object(Vec<(String, Self)>),
}

/// Reads one value, which may be followed by spaces.
pub(super) fn parse(bytes: &[u8]) -> Result<Json, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("the header is not UTF-8: {error}"))?;
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    match text[parser.at..].bytes().find(|byte| *byte != b' ') {
        None => Ok(value),
        Some(_) => Err(parser.error("something follows the header")),
    }
}

/// Appends a text in quotes.
pub(super) fn put_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn error(&self, what: &str) -> String {
        format!("{what} at byte {} of the header", self.at)
    }

    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(|byte| b" \t\r\n".contains(byte)) {
            self.at += 1;
        }
        bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn need(&mut self, byte: u8) -> Result<(), String> {
        if self.take(byte) { Ok(()) } else { Err(self.error(&format!("no {:?}", char::from(byte)))) }
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > DEPTH_MAX {
            return Err(self.error("values lie too deep"));
        }
        match self.peek() {
            Some(b'"') => self.string().map(Json::Text),
            Some(b'0'..=b'9') => self.number().map(Json::Number),
            Some(b'[') => self.list(depth),
            Some(b'{') => self.object(depth),
            _ => Err(self.error("neither text, whole number, list nor object")),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, String> {
        self.need(b'[')?;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(b']') {
                return Ok(Json::List(items));
            }
            self.need(b',')?;
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        self.need(b'{')?;
        let mut fields = Vec::new();
        let mut known = std::collections::BTreeSet::new();
        if self.take(b'}') {
            return Ok(Json::Object(fields));
        }
        loop {
            self.peek();
            let key = self.string()?;
            if !known.insert(key.clone()) {
                return Err(self.error(&format!("{key:?} twice")));
            }
            self.need(b':')?;
            let value = self.value(depth + 1)?;
            fields.push((key, value));
            if self.take(b'}') {
                return Ok(Json::Object(fields));
            }
            self.need(b',')?;
        }
    }

    fn number(&mut self) -> Result<u64, String> {
        let digits = self.text.as_bytes()[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = &self.text[self.at..self.at + digits];
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(self.error("a number with a 0 in front"));
        }
        let number = digits.parse().map_err(|_| self.error("a number that is too large"))?;
        self.at += digits.len();
        Ok(number)
    }

    fn string(&mut self) -> Result<String, String> {
        if self.text.as_bytes().get(self.at) != Some(&b'"') {
            return Err(self.error("no text"));
        }
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ');
            let plain = plain.ok_or_else(|| self.error("a text without end"))?;
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.text.as_bytes()[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => out.push(self.escaped()?),
                _ => return Err(self.error("a control character in a text")),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let kind = self.text.as_bytes().get(self.at + 1).copied();
        self.at += 2;
        let known = match kind {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.escaped_unit(),
            _ => return Err(self.error("an unknown escape")),
        };
        Ok(known)
    }

    /// One character of UTF-16, whose second half follows in an escape of its own.
    fn escaped_unit(&mut self) -> Result<char, String> {
        let first = self.unit()?;
        let mut units = vec![first];
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            units.push(self.unit()?);
        }
        let mut decoded = char::decode_utf16(units);
        match (decoded.next(), decoded.next()) {
            (Some(Ok(c)), None) => Ok(c),
            _ => Err(self.error("half a character")),
        }
    }

    fn unit(&mut self) -> Result<u16, String> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.error("an escape without four digits"))?;
        self.at += 4;
        Ok(unit)
    }
}
