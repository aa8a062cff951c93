//! One line of every server's log, and the record that is read from it.

use super::*;

type Row = (Kind, u64, String, String, String, Option<u16>, Option<u64>);

#[test]
fn log_line_of_every_server_is_read() {
    let options = Options::default();
    let pattern = |text: &str| Options {
        pattern: Some(Pattern::new(text).expect("a format")),
        ..Options::default()
    };
    let second = 1_431_857_103_000_000;
    let cases = [
        (
            r#"83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 203023 "http://x/" "Mozilla/5.0 (\"x\")""#,
            row(
                Kind::Combined,
                second,
                "83.149.9.216",
                "GET /a?b=c",
                "",
                200,
                None,
            ),
        ),
        (
            r#"unicomp6.unicomp.net - - [17/May/2015:10:05:03 +0000] "GET /a b" 304 -"#,
            row(
                Kind::Combined,
                second,
                "unicomp6.unicomp.net",
                "GET /a b",
                "",
                304,
                None,
            ),
        ),
        (
            r#"www.example.com:443 2001:db8::1 - jane doe [17/May/2015:10:05:03 +0000] "POST / HTTP/2.0" 201 0 "-" "-""#,
            row(
                Kind::Combined,
                second,
                "2001:db8::1",
                "POST /",
                "www.example.com",
                201,
                None,
            ),
        ),
        (
            r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "x" 0.250"#,
            row(
                Kind::Combined,
                second - 250_000,
                "10.0.0.1",
                "GET /",
                "",
                200,
                Some(250_000),
            ),
        ),
        (
            r#"10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "x" 17 "web@docker" "http://10.0.0.2:80" 12ms"#,
            row(
                Kind::TraefikClf,
                second,
                "10.0.0.1",
                "GET /",
                "",
                200,
                Some(12_000),
            ),
        ),
        (
            r#"[2015-05-17T10:05:03.310Z] "POST /api HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0" "locations:80" "tcp://10.0.2.1:80""#,
            row(
                Kind::EnvoyText,
                second + 310_000,
                "10.0.35.28",
                "POST /api",
                "locations",
                204,
                Some(226_000),
            ),
        ),
        (
            r#"[2015-05-17T10:05:03.310Z] "GET / HTTP/1.1" 200 - via_upstream - "-" 0 3 5 4 "10.0.0.9, 192.0.2.3" "curl" "id" "a.example" "10.1.1.1:80" x"#,
            row(
                Kind::EnvoyText,
                second + 310_000,
                "192.0.2.3",
                "GET /",
                "a.example",
                200,
                Some(5_000),
            ),
        ),
        (
            r#"May 17 10:05:03 localhost haproxy[14389]: 10.0.1.2:33317 [17/May/2015:10:05:03.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1""#,
            row(
                Kind::HaProxy,
                second + 655_000,
                "10.0.1.2",
                "GET /index.html",
                "",
                200,
                Some(109_000),
            ),
        ),
        (
            r#"https 2015-05-17T10:05:03.186641Z app/lb/50dc 192.168.131.39:2817 10.0.0.1:80 0.001 0.002 0.000 200 200 34 366 "GET https://www.example.com:443/a?b HTTP/1.1" "curl/7.46.0" - - arn "Root=1""#,
            row(
                Kind::Alb,
                second + 183_641,
                "192.168.131.39",
                "GET /a?b",
                "www.example.com",
                200,
                Some(3_000),
            ),
        ),
        (
            "#Version: 1.0\n#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(User-Agent) cs-uri-query time-taken\n2015-05-17\t10:05:03\tFRA\t10\t192.0.2.10\tGET\td111.cloudfront.net\t/view\t200\tMozilla/4.0%20(x)\ta=b\t0.002",
            row(
                Kind::W3c,
                second - 2_000,
                "192.0.2.10",
                "GET /view?a=b",
                "d111.cloudfront.net",
                200,
                Some(2_000),
            ),
        ),
        (
            r#"{"level":"info","ts":1431857103.25,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"127.0.0.1","client_ip":"192.0.2.9","proto":"HTTP/2.0","method":"GET","host":"localhost:8080","uri":"/a","headers":{"X-Api-Key":["k"]}},"bytes_read":0,"duration":0.25,"size":2,"status":200}"#,
            row(
                Kind::Caddy,
                second,
                "192.0.2.9",
                "GET /a",
                "localhost",
                200,
                Some(250_000),
            ),
        ),
        (
            r#"{"ClientAddr":"192.0.2.1:3","ClientHost":"192.0.2.1","Duration":5000000,"RequestHost":"a.example","RequestMethod":"GET","RequestPath":"/x","DownstreamStatus":200,"StartUTC":"2015-05-17T10:05:03.5Z","time":"2015-05-17T10:05:04Z"}"#,
            row(
                Kind::Traefik,
                second + 500_000,
                "192.0.2.1",
                "GET /x",
                "a.example",
                200,
                Some(5_000),
            ),
        ),
        (
            r#"{"start_time":"2015-05-17T10:05:03.000Z","method":"GET","path":"/x","authority":"a.example:80","response_code":200,"duration":7,"downstream_remote_address":"192.0.2.1:4","x_forwarded_for":null}"#,
            row(
                Kind::Envoy,
                second,
                "192.0.2.1",
                "GET /x",
                "a.example",
                200,
                Some(7_000),
            ),
        ),
        (
            r#"{"ClientIP":"192.0.2.1","ClientRequestHost":"a.example","ClientRequestMethod":"GET","ClientRequestURI":"/x?y","EdgeStartTimestamp":1431857103000000000,"EdgeEndTimestamp":"2015-05-17T10:05:03.5Z","EdgeResponseStatus":200}"#,
            row(
                Kind::Cloudflare,
                second,
                "192.0.2.1",
                "GET /x?y",
                "a.example",
                200,
                Some(500_000),
            ),
        ),
        (
            r#"{"time_iso8601":"2015-05-17T10:05:03+00:00","remote_addr":"192.0.2.1","request":"GET /x HTTP/1.1","status":"200","request_time":"0.500","http_x_api_key":"k"}"#,
            row(
                Kind::Json,
                second - 500_000,
                "192.0.2.1",
                "GET /x",
                "",
                200,
                Some(500_000),
            ),
        ),
        (
            r#"{"time":"2015-05-17T10:05:03.000042Z","id":"9e3779b97f4a7c15","status":200,"method":"GET","path":"/x://z","query":"y=1","client":"192.0.2.1","sent_bytes":1,"duration_us":9,"limits":[{"name":"a","key":"k","cost":1,"remaining":3,"outcome":"allow"}]}"#,
            row(
                Kind::Tollgate,
                second + 42,
                "192.0.2.1",
                "GET /x://z?y=1",
                "",
                200,
                Some(9),
            ),
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(one(text, &options), expected, "{text}");
    }
    let text = r#"k-1|1431857103.250|192.0.2.1|GET /x HTTP/1.1|200|0.050|"-""#;
    let format = r#"log_format mine escape=json '$http_x_api_key|$msec|$remote_addr|' '$request|$status|$request_time|"$http_referer"';"#;
    let read = one(text, &pattern(format));
    assert_eq!(
        read,
        row(
            Kind::LogFormat,
            second + 200_000,
            "192.0.2.1",
            "GET /x",
            "",
            200,
            Some(50_000)
        )
    );
    let berlin = Options {
        zone: TimeZone::fixed(jiff::tz::offset(1)),
        ..Options::default()
    };
    let text = r#"10.0.1.2:33317 [17/May/2015:11:05:03.655] in~ app/<NOSRV> 10/-1/-1/-1/109 503 2750 - - SC-- 1/1/1/1/0 0/0 "GET /""#;
    assert_eq!(one(text, &berlin).1, second + 655_000);
}

/// The record of the one request in a text: format, start, client, request, host, status, duration.
fn one(text: &str, options: &Options) -> Row {
    let mut rows = Vec::new();
    let survey = read_text(text.as_bytes(), options, |record, at| {
        let words = |text: &Option<std::borrow::Cow<'_, [u8]>>| {
            text.as_ref()
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .unwrap_or_default()
        };
        let request = format!(
            "{} {}",
            String::from_utf8_lossy(&record.method),
            String::from_utf8_lossy(&record.target)
        );
        rows.push((
            record.kind,
            at,
            words(&record.client),
            request,
            words(&record.host),
            record.status,
            record.duration,
        ));
    });
    assert_eq!(survey.unreadable, 0, "{text}: {:?}", survey.samples);
    assert_eq!(rows.len(), 1, "{text}");
    rows.remove(0)
}

fn row(
    kind: Kind,
    at: u64,
    client: &str,
    request: &str,
    host: &str,
    status: u16,
    duration: Option<u64>,
) -> Row {
    (
        kind,
        at,
        client.into(),
        request.into(),
        host.into(),
        Some(status),
        duration,
    )
}

/// A collector's prefix is taken off, whichever it is: the client is the line's own.
#[test]
fn log_line_behind_a_collectors_prefix_is_read_as_without_it() {
    let line =
        r#"198.51.100.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8""#;
    let own = r#"{"time":"2015-05-17T10:05:03Z","method":"GET","path":"/a","status":200,"client_ip":"198.51.100.7"}"#;
    let host = format!("www.example.com {line}");
    for prefix in [
        "",
        "May  1 10:00:00 edge1 nginx: ",
        "<190>May 17 10:05:03 edge1 nginx[12]: ",
        "2015-05-17T10:05:03.123456+00:00 edge1 nginx: ",
        "<190>1 2015-05-17T10:05:03Z edge1 nginx 12 - - ",
        r#"<190>1 2015-05-17T10:05:03Z edge1 nginx - access [a@1 b="\]" c="d"][e@1] "#,
        "web-1  | ",
        "shop-web-1 | 2015-05-17T10:05:03.123456789Z ",
        "[pod/web-5d8f/nginx] ",
        "[pod/web-5d8f/nginx] 2015-05-17T10:05:03.123456789Z ",
        "2015-05-17T10:05:03.123456789Z stdout F ",
        "2015-05-17T10:05:03.123456789Z ",
    ] {
        let format = Options {
            pattern: Some(
                Pattern::new(r#"$remote_addr [$time_local] "$request""#).expect("a format"),
            ),
            ..Options::default()
        };
        let short = "198.51.100.7 [17/May/2015:10:05:03 +0000] \"GET /a HTTP/1.1\"";
        let mut clients = Vec::new();
        read_text(
            format!("{prefix}{short}").as_bytes(),
            &format,
            |record, _| {
                clients.push(record.client.as_deref().map(<[u8]>::to_vec));
            },
        );
        assert_eq!(clients, [Some(b"198.51.100.7".to_vec())], "{prefix}");
        for (line, name) in [(line, ""), (host.as_str(), "www.example.com"), (own, "")] {
            let text = format!("{prefix}{line}");
            let mut clients = Vec::new();
            let survey = read_text(text.as_bytes(), &Options::default(), |record, _| {
                let text = |text: &Option<record::Text<'_>>| {
                    String::from_utf8_lossy(text.as_deref().unwrap_or_default()).into_owned()
                };
                clients.push((text(&record.client), text(&record.host)));
            });
            assert_eq!(survey.unreadable, 0, "{text}");
            assert_eq!(
                clients,
                [("198.51.100.7".to_owned(), name.to_owned())],
                "{text}"
            );
        }
    }
}

/// Words that are no prefix which is known are no client either.
#[test]
fn log_line_behind_other_words_is_unreadable() {
    let line =
        r#"198.51.100.7 - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 12 "-" "curl/8""#;
    for prefix in [
        "web-1 nginx ",
        "2015-05-17 10:05:03 ",
        "I0517 nginx.go:7] ",
        "198.51.100.1, ",
        "2015-05-17T10:05:03.1Z stdout P ",
    ] {
        let survey = read_text(
            format!("{prefix}{line}").as_bytes(),
            &Options::default(),
            |_, _| {},
        );
        assert_eq!((survey.requests, survey.unreadable), (0, 1), "{prefix}");
    }
}

#[test]
fn log_format_with_tabs_lists_and_joined_variables_is_read() {
    let time = "17/May/2015:10:05:03 +0000";
    for (format, line, client, target) in [
        (
            r"time:$time_local\thost:$remote_addr\treq:$request",
            format!("time:{time}\thost:192.0.2.7\treq:GET /a HTTP/1.1"),
            "192.0.2.7",
            "/a",
        ),
        (
            r#"log_format x '$time_local\t' "$remote_addr\t\"$request\"";"#,
            format!("{time}\t192.0.2.7\t\"GET /a HTTP/1.1\""),
            "192.0.2.7",
            "/a",
        ),
        (
            r#"$remote_addr [$time_local] $request_method $scheme://$host$request_uri"#,
            format!("192.0.2.7 [{time}] GET https://a.example/a/b?c"),
            "192.0.2.7",
            "/a/b?c",
        ),
        (
            r#"$remote_addr [$time_local] $request_method $uri$is_args$args $status"#,
            format!("192.0.2.7 [{time}] GET /a?b=c 200"),
            "192.0.2.7",
            "/a?b=c",
        ),
        (
            r#"$http_x_forwarded_for $remote_addr [$time_local] "$request""#,
            format!("198.51.100.1, 10.0.0.1 192.0.2.7 [{time}] \"GET /a HTTP/1.1\""),
            "192.0.2.7",
            "/a",
        ),
        (
            r#"$proxy_add_x_forwarded_for - [$time_local] "$request""#,
            format!("198.51.100.1, 192.0.2.7 - [{time}] \"GET /a HTTP/1.1\""),
            "192.0.2.7",
            "/a",
        ),
    ] {
        let options = Options {
            pattern: Some(Pattern::new(format).expect(format)),
            ..Options::default()
        };
        let mut read = Vec::new();
        read_text(line.as_bytes(), &options, |record, _| {
            let client = record.client.as_deref().unwrap_or_default();
            let text = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
            read.push((text(client), text(&record.target)));
        });
        assert_eq!(read, [(client.to_owned(), target.to_owned())], "{format}");
    }
}
