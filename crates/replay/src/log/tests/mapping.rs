//! Logs whose columns a mapping names.

use super::*;

#[test]
fn log_columns_by_mapping_are_read() {
    let options = Options {
        fields: Some(
            Fields::parse("time=TIMESTAMP,cost=Generated Tokens,key=user.id").expect("a mapping"),
        ),
        ..Options::default()
    };
    let mut rows = Vec::new();
    let text = "\u{feff}TIMESTAMP,\"Generated Tokens\",user.id\n2015-05-17 10:05:03.5,44,\"a,\"\"b\"\"\"\nbroken,1,x\n\
                {\"TIMESTAMP\":\"2015-05-17T10:05:03Z\",\"Generated Tokens\":7,\"user\":{\"id\":\"c\"}}\n";
    let survey = read_text(text.as_bytes(), &options, |record, at| {
        let key = record
            .key
            .as_ref()
            .map(|key| String::from_utf8_lossy(key).into_owned());
        rows.push((at, record.cost, key));
    });
    assert_eq!(
        (survey.lines, survey.unreadable, survey.requests),
        (4, 1, 2)
    );
    let start = 1_431_857_103_000_000;
    assert_eq!(
        rows,
        [
            (start + 500_000, Some(44), Some("a,\"b\"".to_owned())),
            (start, Some(7), Some("c".to_owned()))
        ]
    );
    for bad in ["cost=x", "time=a,time=b", "what=x", "time"] {
        assert!(Fields::parse(bad).is_err(), "{bad}");
    }
    for bad in [
        "$request",
        "$time_local $status",
        "$time_local$request",
        "[$",
    ] {
        assert!(Pattern::new(bad).is_err(), "{bad}");
    }
}

#[test]
fn log_columns_without_a_status_or_with_two_hosts_are_read() {
    let mapping = "time=t,path=url,host=host,status=status";
    let options = Options {
        fields: Some(Fields::parse(mapping).expect("a mapping")),
        ..Options::default()
    };
    let text = "t,url,host,status\n\
                1431857103,http://a.example/x,b.example,200\n\
                1431857103,http://a.example/x,-,0\n\
                1431857103,/x,b.example,000\n\
                1431857103,/x,b.example,-1\n\
                1431857103,/x,b.example,-\n";
    let mut rows = Vec::new();
    let survey = read_text(text.as_bytes(), &options, |record, _| {
        let host = record.host.as_deref().map(String::from_utf8_lossy);
        rows.push((host.unwrap_or_default().into_owned(), record.status));
    });
    assert_eq!((survey.requests, survey.unreadable), (5, 0));
    let row = |host: &str, status| (host.to_owned(), status);
    assert_eq!(
        rows,
        [
            row("b.example", Some(200)),
            row("a.example", None),
            row("b.example", None),
            row("b.example", None),
            row("b.example", None),
        ]
    );
}
