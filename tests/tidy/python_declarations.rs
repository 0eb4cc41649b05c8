//! The constants, structures and functions of the C interface as Python's `ctypes` wants them, made of the header.

use crate::tree::{self, Tree};
use std::{collections::BTreeMap, fmt::Write};

const HEADERS: [&str; 3] = ["include/pccl.h", "include/pccl_diloco.h", "include/pccl_samples.h"];
const MODULE: &str = "python/pccl/_declarations.py";
const HEAD: &str = "\
\"\"\"The constants, structures and functions of the C headers, made by ``make_python_declarations`` of tidy.\"\"\"

from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int32,
                    c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)
";
/// Types of C by value, with those of `ctypes`.
const VALUES: &[(&str, &str)] = &[
    ("bool", "c_bool"),
    ("int", "c_int"),
    ("int32_t", "c_int32"),
    ("uint16_t", "c_uint16"),
    ("uint32_t", "c_uint32"),
    ("uint64_t", "c_uint64"),
    ("uint8_t", "c_uint8"),
    ("size_t", "c_size_t"),
    ("double", "c_double"),
    ("float", "c_float"),
    ("char", "c_char"),
];

/// A kind of type that the header declares.
enum Kind {
    /// A number.
    Enum,
    /// Known by pointers only.
    Opaque,
    /// Bytes: an array in a structure of its own, which Python takes as the array.
    Bytes,
    Structure,
    Callback,
}

#[derive(Default)]
struct Declarations {
    kinds: BTreeMap<String, Kind>,
    text: String,
    functions: String,
}

/// The name in Python of a type of the header.
fn short(name: &str) -> &str {
    name.trim_start_matches("pccl").trim_end_matches("_t")
}

impl Declarations {
    /// The type of `ctypes` for a C type without its stars and `const`, behind that many stars.
    fn type_of(&self, base: &str, stars: usize) -> Option<String> {
        if let Some((_, value)) = VALUES.iter().find(|(name, _)| *name == base) {
            return Some(match (*value, stars) {
                (value, 0) => value.to_owned(),
                ("c_char", 1) => "c_char_p".to_owned(),
                ("c_char", 2) => "POINTER(c_char_p)".to_owned(),
                (value, _) => format!("POINTER({value})"),
            });
        }
        let name = short(base);
        match (self.kinds.get(base), stars) {
            (None, 1) if base == "void" => Some("c_void_p".to_owned()),
            (None, 2) if base == "void" => Some("POINTER(c_void_p)".to_owned()),
            (Some(Kind::Enum), 0) => Some("c_int".to_owned()),
            (Some(Kind::Enum), 1) => Some("POINTER(c_int)".to_owned()),
            (Some(Kind::Opaque | Kind::Bytes), 1) => Some("c_void_p".to_owned()),
            (Some(Kind::Opaque), 2) => Some("POINTER(c_void_p)".to_owned()),
            (Some(Kind::Structure | Kind::Callback | Kind::Bytes), 0) => Some(name.to_owned()),
            (Some(Kind::Structure), 1) => Some(format!("POINTER({name})")),
            _ => None,
        }
    }

    /// Name and type of a field or parameter such as `const char *name` or `char id[72]`.
    fn named(&self, text: &str) -> Option<(String, String)> {
        let plain = text.replace("const", " ").replace('*', " * ");
        let (plain, length) = match plain.split_once('[') {
            Some((plain, rest)) => (plain.to_owned(), Some(rest.trim_end_matches(']').to_owned())),
            None => (plain, None),
        };
        let words: Vec<&str> = plain.split_whitespace().filter(|word| *word != "*").collect();
        let [base, name] = words[..] else { return None };
        let value = self.type_of(base, plain.matches('*').count())?;
        Some((name.to_owned(), length.map_or_else(|| value.clone(), |length| format!("{value} * {length}"))))
    }

    /// One statement of the header, without its semicolon. `None`: Python does not need it.
    fn add(&mut self, statement: &str) -> Option<()> {
        if let Some(rest) = statement.strip_prefix("typedef enum ") {
            let (constants, name) = rest.split_once('{')?.1.split_once('}')?;
            self.text.push('\n');
            for constant in constants.split(',') {
                let (constant, number) = constant.split_once('=')?;
                let _ = writeln!(self.text, "{} = {}", constant.trim(), number.trim());
            }
            self.kinds.insert(name.trim().to_owned(), Kind::Enum);
        } else if let Some(rest) = statement.strip_prefix("typedef void (*") {
            let (name, parameters) = rest.trim_end_matches(')').split_once(")(")?;
            let types = self.types(parameters)?;
            let _ = write!(self.text, "\n{} = CFUNCTYPE(None, {})\n", short(name), types.join(", "));
            self.kinds.insert(name.to_owned(), Kind::Callback);
        } else if let Some(rest) = statement.strip_prefix("typedef struct ") {
            let Some((_, rest)) = rest.split_once('{') else {
                self.kinds.insert(rest.rsplit(' ').next()?.to_owned(), Kind::Opaque);
                return Some(());
            };
            let (fields, name) = rest.split_once('}')?;
            self.add_structure(fields, name.trim())?;
        } else if let Some(rest) = statement.strip_prefix("PCCL_EXPORT ") {
            let (head, parameters) = rest.trim_end_matches(')').split_once('(')?;
            let (name, result) = self.named(head)?;
            let types = if parameters == "void" { Vec::new() } else { self.types(parameters)? };
            let _ = writeln!(self.functions, "    \"{name}\": ({result}, [{}]),", types.join(", "));
        }
        Some(())
    }

    fn add_structure(&mut self, fields: &str, name: &str) -> Option<()> {
        let fields = fields.split(';').map(str::trim).filter(|field| !field.is_empty());
        let fields: Vec<(String, String)> = fields.map(|field| self.named(field)).collect::<Option<_>>()?;
        let short = short(name);
        if let [(_, only)] = &fields[..]
            && only.contains(" * ")
        {
            let _ = write!(self.text, "\n{short} = {only}\n");
            self.kinds.insert(name.to_owned(), Kind::Bytes);
            return Some(());
        }
        let _ = write!(self.text, "\n\nclass {short}(Structure):\n    _fields_ = [\n");
        for (field, value) in fields {
            let _ = writeln!(self.text, "        (\"{field}\", {value}),");
        }
        self.text.push_str("    ]\n");
        self.kinds.insert(name.to_owned(), Kind::Structure);
        Some(())
    }

    fn types(&self, parameters: &str) -> Option<Vec<String>> {
        parameters.split(',').map(|parameter| Some(self.named(parameter)?.1)).collect()
    }
}

/// The statements of a header, each on one line, without comments and what is for the preprocessor.
fn statements(header: &str) -> Vec<String> {
    let mut text = String::new();
    for (index, piece) in header.split("/*").enumerate() {
        let code = if index == 0 { piece } else { piece.split_once("*/").map_or("", |(_, code)| code) };
        text.push_str(code);
    }
    let is_code = |line: &&str| !line.starts_with('#') && !line.starts_with("extern \"C\"");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_code).collect();
    let (mut all, mut statement, mut depth) = (Vec::new(), String::new(), 0);
    for c in lines.join(" ").chars() {
        match c {
            '{' => depth += 1,
            // The end of `extern "C"`.
            '}' if depth == 0 => continue,
            '}' => depth -= 1,
            ';' if depth == 0 => {
                all.push(std::mem::take(&mut statement).split_whitespace().collect::<Vec<_>>().join(" "));
                continue;
            }
            _ => {}
        }
        statement.push(c);
    }
    all
}

/// The module of Python for a header.
fn made(header: &str) -> String {
    let mut declarations = Declarations::default();
    for statement in statements(header) {
        // Structures of the original's addresses, which Python gives as text.
        let _ = declarations.add(&statement);
    }
    let Declarations { text, functions, .. } = declarations;
    let about = "#: Of each function the type of its result, and those of its parameters.";
    format!("{HEAD}{text}\n\n{about}\nFUNCTIONS = {{\n{functions}}}\n")
}

/// The headers, one after the other.
fn headers(tree: &Tree) -> String {
    HEADERS.iter().filter_map(|header| tree.get(*header)).cloned().collect()
}

/// A module that says something else than the headers.
pub(crate) fn problems(tree: &Tree) -> Vec<String> {
    let module = std::fs::read_to_string(tree::root().join(MODULE)).unwrap_or_default();
    if module == made(&headers(tree)) {
        return Vec::new();
    }
    vec![format!("{MODULE} is stale (make_python_declarations writes it)")]
}

#[test]
fn every_form_of_the_header_is_declared() {
    let header = "\
#include <stdint.h>
extern \"C\" {
/* A kind. */
typedef enum pcclKind_t { pcclOne = 1, pcclTwo = 2 } pcclKind_t;
typedef struct pcclComm_t pcclComm_t;
typedef struct pcclRankUuid_t {
    uint8_t data[16];
} pcclRankUuid_t;
typedef struct pcclPeerOf_t {
    const char *name; /**< Who; or none. */
    pcclRankUuid_t peer;
    pcclKind_t kind;
    char note[8];
} pcclPeer_t;
typedef void (*pcclTell_t)(const pcclPeer_t *peer, void *user);
PCCL_EXPORT const char *pcclVersion(void);
PCCL_EXPORT pcclKind_t pcclTalk(const pcclComm_t *comm, pcclComm_t **out, const pcclPeer_t *peers, size_t *count,
                                pcclTell_t tell, const char *const *names, void *any, pcclRankUuid_t *ids);
PCCL_EXPORT pcclKind_t pcclUnknown(other_t it);
}
";
    let made = made(header);
    let (text, functions) =
        made.strip_prefix(HEAD).expect("its head").split_once("#: Of").expect("functions");
    let declared = "
pcclOne = 1
pcclTwo = 2

RankUuid = c_uint8 * 16


class Peer(Structure):
    _fields_ = [
        (\"name\", c_char_p),
        (\"peer\", RankUuid),
        (\"kind\", c_int),
        (\"note\", c_char * 8),
    ]

Tell = CFUNCTYPE(None, POINTER(Peer), c_void_p)


";
    assert_eq!(text, declared);
    let talk = "c_void_p, POINTER(c_void_p), POINTER(Peer), POINTER(c_size_t), Tell, POINTER(c_char_p), c_void_p, \
                c_void_p";
    let lines: Vec<&str> = functions.lines().skip(2).collect();
    assert_eq!(
        lines,
        ["    \"pcclVersion\": (c_char_p, []),", &format!("    \"pcclTalk\": (c_int, [{talk}]),"), "}"]
    );
}

#[test]
#[ignore = "writes Python's declarations of the C interface"]
fn make_python_declarations() {
    let tree = tree::read();
    let path = tree::root().join(MODULE);
    std::fs::write(path, made(&headers(&tree))).expect("the module can be written");
}
