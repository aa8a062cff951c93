//! Lines and files that are broken, cut off, hostile or stamped with an impossible time.

use std::io::Write;

use proptest::prelude::*;

use super::*;

#[test]
fn log_with_broken_lines_counts_each_and_reads_the_others() {
    let good = r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "x""#;
    let broken = [
        "",
        "   ",
        &good[..60],
        r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "-" 408 0 "-" "-""#,
        r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "\x16\x03\x01" 400 0 "-" "-""#,
        r#"10.0.0.1 - - [17/Foo/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1"#,
        r#"{"time":"2015-05-17T10:05:03Z","#,
        "{}",
        "\u{0}\u{1}\u{2}",
    ];
    let text = format!("{good}\n{}\n{good}", broken.join("\n"));
    let survey = read_text(text.as_bytes(), &Options::default(), |_, _| {});
    assert_eq!(survey.lines, broken.len() as u64 + 2);
    assert_eq!(survey.unreadable, broken.len() as u64);
    assert_eq!(survey.requests, 2);
    assert_eq!(survey.samples.len(), 5);
    let shown = format!("{:?}", survey.samples);
    assert!(!shown.contains("10.0.0.1"), "{shown}");
    let survey = read_text(b"", &Options::default(), |_, _| {});
    assert_eq!(
        (survey.lines, survey.requests, survey.from, survey.to),
        (0, 0, 0, 0)
    );
}

#[test]
fn log_compressed_or_cut_off_is_read_as_far_as_it_goes() {
    let line = "10.0.0.1 - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n";
    let folder = tempfile::tempdir().expect("a folder");
    let text = line.repeat(2_000);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).expect("compressed");
    let gzip = gzip.finish().expect("compressed");
    let zstd = zstd::encode_all(text.as_bytes(), 1).expect("compressed");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    };
    let twice = [gzip.as_slice(), &gzip].concat();
    let files = [
        write("a", text.as_bytes()),
        write("b.gz", &twice),
        write("c.zst", &zstd),
    ];
    let survey = read(&files, &Options::default(), |_| {}, |_, _| {}).expect("readable");
    assert_eq!((survey.requests, survey.unreadable), (8_000, 0));
    let cut = [write("d.gz", &gzip[..gzip.len() / 2])];
    let survey = read(&cut, &Options::default(), |_| {}, |_, _| {}).expect("opened");
    assert!(
        survey
            .warnings
            .iter()
            .any(|warning| warning.contains("cannot be read beyond"))
    );
    let missing = [folder.path().join("none")];
    assert!(read(&missing, &Options::default(), |_| {}, |_, _| {}).is_err());
}

#[test]
fn log_requests_stamped_in_the_future_are_said_and_zones_beyond_the_world_are_unreadable() {
    let line = |year: u32, zone: &str| {
        format!(
            "192.0.2.1 - - [17/May/{year}:10:05:03 {zone}] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\"\n"
        )
    };
    let options = Options {
        now: 1_700_000_000_000_000,
        ..Options::default()
    };
    let text = format!(
        "{}{}{}",
        line(2015, "+1400"),
        line(2015, "+1500"),
        line(2099, "+0000")
    );
    let survey = read_text(text.as_bytes(), &options, |_, _| {});
    assert_eq!((survey.requests, survey.unreadable), (2, 1));
    let said = survey.warnings.join("\n");
    assert!(
        said.contains(
            "1 of 2 requests are stamped later than the present, the last at 2099-05-17T10:05:03Z"
        ),
        "{said}"
    );
    let survey = read_text(line(2015, "+0000").as_bytes(), &options, |_, _| {});
    assert!(
        !survey.warnings.join("").contains("present"),
        "{:?}",
        survey.warnings
    );
}

proptest! {
    #[test]
    fn log_of_any_bytes_never_panics_and_counts_every_line(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let options = Options {
            pattern: Some(Pattern::new("$remote_addr [$time_local] $request").expect("a format")),
            fields: Some(Fields::parse("time=t,cost=c").expect("a mapping")),
            ..Options::default()
        };
        for text in [bytes.clone(), [b"t,c\n#Fields: date time cs-method\n", bytes.as_slice()].concat()] {
            let mut requests = 0;
            let survey = read_text(&text, &options, |_, _| requests += 1);
            prop_assert_eq!(survey.requests, requests);
            prop_assert!(survey.unreadable + survey.requests <= survey.lines);
        }
    }

    #[test]
    fn log_line_damaged_anywhere_never_panics(place in 0_usize..300, byte in any::<u8>(), line in 0_usize..6) {
        let lines = [
            r#"a:80 10.0.0.1 - u [17/May/2015:10:05:03 +0000] "GET /\x22 HTTP/1.1" 200 1 "-" "x\"" 0.1 5ms"#,
            r#"[2015-05-17T10:05:03.310Z] "POST /api HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc" "l" "tcp""#,
            r#"10.0.1.2:33317 [17/May/2015:10:05:03.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 "GET / HTTP/1.1""#,
            r#"http 2015-05-17T10:05:03.186641Z app/lb 192.168.131.39:2817 - 0.001 -1 -1 200 200 34 366 "GET http://[::1]:80/ HTTP/1.1" "c""#,
            r#"{"ts":1431857103.2e1,"request":{"method":"GET","uri":"/a"},"duration":1e-9,"status":200}"#,
            r#"{"time":"2015-05-17T10:05:03.000042Z","id":"9e3779b97f4a7c15","status":200,"method":"GET","path":"/x","duration_us":9}"#,
        ];
        let mut text = lines[line].as_bytes().to_vec();
        let place = place % text.len();
        text[place] = byte;
        let _ = read_text(&text, &Options::default(), |_, _| {});
        let _ = read_text(&text[..place], &Options::default(), |_, _| {});
    }
}
