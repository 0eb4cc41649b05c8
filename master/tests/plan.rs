//! `pccl-master plan` as a user calls it.

use pccl_testkit::directory::Directory;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn file(directory: &Directory, name: &str, text: &str) -> PathBuf {
    let path = directory.file(name);
    fs::write(&path, text).unwrap();
    path
}

fn plan(matrix: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pccl-master")).arg("plan").arg(matrix).args(more).output().unwrap()
}

fn success(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn failure(output: Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

// The sum of 1 / rate prefers a b c d, whose slowest edge has 400.
const RATES: &str = "from,a,b,c,d\na,,10000,1000,\nb,,,400,1000\nc,,1000,,10000\nd,10000,,,\n";

#[test]
fn objectives_and_outputs() {
    let directory = Directory::new("rates");
    let matrix = file(&directory, "rates.csv", RATES);
    let text = success(plan(&matrix, &[]));
    assert!(text.contains("ring:         a -> c -> b -> d\n"), "{text}");
    assert!(text.contains("1000 Mbit/s; no ring does better\n"), "{text}");
    assert!(text.contains("proven:       yes\n"), "{text}");
    let json = success(plan(&matrix, &["--objective", "sum", "--json", "--seed", "3"]));
    assert!(
        json.starts_with(r#"{"order":["a","b","c","d"],"objective":"sum","value":2.8,"bound":2.8,"#),
        "{json}"
    );
    let picture = directory.0.join("ring.svg");
    let json =
        success(plan(&matrix, &["--objective", "bottleneck", "--json", "--svg", picture.to_str().unwrap()]));
    assert!(
        json.contains(r#""objective":"bottleneck","value":1000,"bound":1000,"gap":0,"proven":true"#),
        "{json}"
    );
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg "));
}

#[test]
fn costs_and_files_of_the_tsplib() {
    let directory = Directory::new("costs");
    let table = file(&directory, "costs.csv", "a,b,c\n,1,9\n9,,1.5\n1,9,\n");
    let json = success(plan(&table, &["--costs", "--json"]));
    assert!(json.starts_with(r#"{"order":["a","b","c"],"objective":"sum","value":3.5,"#), "{json}");
    let file = file(
        &directory,
        "three.atsp",
        "NAME: three\nTYPE: ATSP\nDIMENSION: 3\nEDGE_WEIGHT_TYPE: EXPLICIT\nEDGE_WEIGHT_FORMAT: FULL_MATRIX\n\
         EDGE_WEIGHT_SECTION\n 9999 9 1\n 2 9999 9\n 9 3 9999\nEOF\n",
    );
    let json = success(plan(&file, &["--json"]));
    assert!(
        json.starts_with(r#"{"order":["1","3","2"],"objective":"sum","value":6,"bound":6,"gap":0,"#),
        "{json}"
    );
}

#[test]
fn places_and_latencies() {
    let directory = Directory::new("places");
    let rates = file(&directory, "rates.csv", "a,b,c,d\n,9,9,9\n9,,9,9\n9,9,,9\n9,9,9,\n");
    let latency = file(&directory, "ms.csv", "a,b,c,d\n,1,5,5\n5,,1,5\n5,5,,1\n1,5,5,\n");
    let latency = latency.to_str().unwrap();
    let text = success(plan(&rates, &["--latency", latency]));
    assert!(text.contains("a -> b -> c -> d") && text.contains("sum:          4 (latencies, ms)"), "{text}");
    let text = success(plan(&rates, &["--latency", latency, "--together", "a,c"]));
    assert!(
        text.contains("a -> c") || text.contains("c -> a") || text.contains("a -> b -> d -> c"),
        "{text}"
    );
}

#[test]
fn without_a_ring_it_says_who_stands_in_the_way() {
    let directory = Directory::new("none");
    let matrix = file(&directory, "rates.csv", "a,b,c\n,1,\n1,,\n,1,\n");
    let error = failure(plan(&matrix, &[]));
    assert_eq!(error, "pccl-master: there is no ring: nobody can reach c\n");
    let output = plan(&matrix, &["--json"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "{\"order\":null,\"proven\":true,\"obstacles\":[\"nobody can reach c\"]}\n"
    );
}

#[test]
fn bad_input_is_named_with_its_line() {
    let directory = Directory::new("bad");
    let matrix = file(&directory, "rates.csv", "a,b\n,1\nfast,\n");
    let error = failure(plan(&matrix, &[]));
    assert!(error.ends_with("rates.csv, line 3: b -> a: \"fast\" is not a number of 0 or more\n"), "{error}");
    let good = file(&directory, "good.csv", "a,b\n,1\n1,\n");
    let error = failure(plan(&good, &["--latency", matrix.to_str().unwrap()]));
    assert!(error.contains("rates.csv, line 3"), "{error}");
    let error = failure(plan(&good, &["--together", "a,z"]));
    assert!(error.contains("no \"z\""), "{error}");
    let error = failure(plan(&directory.0.join("missing.csv"), &[]));
    assert!(error.contains("cannot read"), "{error}");
    fs::write(&good, b"a,b\n,1\n\xff,\n").unwrap();
    assert!(failure(plan(&good, &[])).contains("line 3 is not UTF-8"));
}

#[test]
fn the_same_seed_prints_the_same_ring() {
    let directory = Directory::new("seed");
    let mut text: String = (0..20).map(|i| format!("p{i},")).collect();
    text.pop();
    for i in 0..20u32 {
        text.push('\n');
        let row: Vec<String> =
            (0..20u32).map(|k| (1 + (i * 37 + k * 61 + i * k * 13) % 97).to_string()).collect();
        text += &row.join(",");
    }
    let matrix = file(&directory, "rates.csv", &text);
    let ring = || {
        let json = success(plan(&matrix, &["--json", "--seed", "5", "--budget-ms", "60000"]));
        json.split(",\"took_ms\"").next().unwrap().to_owned()
    };
    assert_eq!(ring(), ring());
}
