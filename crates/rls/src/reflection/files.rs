//! The descriptions, as tables, and how they become `google.protobuf.FileDescriptorProto`s.

use prost::Message;

/// A file of definitions.
pub(super) struct File {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) imports: &'static [&'static str],
    messages: &'static [Type],
    enums: &'static [Words],
    pub(super) services: &'static [Service],
}

struct Type {
    name: &'static str,
    fields: &'static [Field],
    nested: &'static [Type],
    enums: &'static [Words],
    /// The name of a `oneof` that contains the fields marked so.
    one_of: Option<&'static str>,
}

/// A name, a number, and what the value is.
struct Field(&'static str, i32, Kind);

#[derive(Clone, Copy)]
enum Kind {
    String,
    Bytes,
    Bool,
    Int32,
    Int64,
    Uint32,
    Uint64,
    /// A message by its full name.
    Message(&'static str),
    Enum(&'static str),
    Messages(&'static str),
    BytesList,
    /// A string, or a message, in the `oneof`.
    OneString,
    OneMessage(&'static str),
}

struct Words(&'static str, &'static [(&'static str, i32)]);

/// A service with its methods.
pub(super) struct Service {
    pub(super) name: &'static str,
    methods: &'static [Method],
}

/// A name, request and response, and whether either is a stream.
struct Method(&'static str, (&'static str, bool), (&'static str, bool));

const fn plain(name: &'static str, fields: &'static [Field]) -> Type {
    Type {
        name,
        fields,
        nested: &[],
        enums: &[],
        one_of: None,
    }
}

const RESPONSE: &str = ".envoy.service.ratelimit.v3.RateLimitResponse";
const DURATION: &str = ".google.protobuf.Duration";
const UNIT: &str = ".envoy.type.v3.RateLimitUnit";

const UNITS: &[(&str, i32)] = &[
    ("UNKNOWN", 0),
    ("SECOND", 1),
    ("MINUTE", 2),
    ("HOUR", 3),
    ("DAY", 4),
    ("MONTH", 5),
    ("YEAR", 6),
    ("WEEK", 7),
];

const fn library(name: &'static str, package: &'static str, messages: &'static [Type]) -> File {
    File {
        name,
        package,
        imports: &[],
        messages,
        enums: &[],
        services: &[],
    }
}

/// Reflection's messages are the same in both versions.
macro_rules! reflection {
    ($version:literal) => {
        File {
            name: concat!("grpc/reflection/", $version, "/reflection.proto"),
            package: concat!("grpc.reflection.", $version),
            imports: &[],
            messages: &[
                Type {
                    one_of: Some("message_request"),
                    ..plain(
                        "ServerReflectionRequest",
                        &[
                            Field("host", 1, Kind::String),
                            Field("file_by_filename", 3, Kind::OneString),
                            Field("file_containing_symbol", 4, Kind::OneString),
                            Field(
                                "file_containing_extension",
                                5,
                                Kind::OneMessage(concat!(
                                    ".grpc.reflection.",
                                    $version,
                                    ".ExtensionRequest"
                                )),
                            ),
                            Field("all_extension_numbers_of_type", 6, Kind::OneString),
                            Field("list_services", 7, Kind::OneString),
                        ],
                    )
                },
                plain(
                    "ExtensionRequest",
                    &[
                        Field("containing_type", 1, Kind::String),
                        Field("extension_number", 2, Kind::Int32),
                    ],
                ),
                Type {
                    one_of: Some("message_response"),
                    ..plain(
                        "ServerReflectionResponse",
                        &[
                            Field("valid_host", 1, Kind::String),
                            Field(
                                "original_request",
                                2,
                                Kind::Message(concat!(
                                    ".grpc.reflection.",
                                    $version,
                                    ".ServerReflectionRequest"
                                )),
                            ),
                            Field(
                                "file_descriptor_response",
                                4,
                                Kind::OneMessage(concat!(
                                    ".grpc.reflection.",
                                    $version,
                                    ".FileDescriptorResponse"
                                )),
                            ),
                            Field(
                                "list_services_response",
                                6,
                                Kind::OneMessage(concat!(
                                    ".grpc.reflection.",
                                    $version,
                                    ".ListServiceResponse"
                                )),
                            ),
                            Field(
                                "error_response",
                                7,
                                Kind::OneMessage(concat!(
                                    ".grpc.reflection.",
                                    $version,
                                    ".ErrorResponse"
                                )),
                            ),
                        ],
                    )
                },
                plain(
                    "FileDescriptorResponse",
                    &[Field("file_descriptor_proto", 1, Kind::BytesList)],
                ),
                plain(
                    "ListServiceResponse",
                    &[Field(
                        "service",
                        1,
                        Kind::Messages(concat!(".grpc.reflection.", $version, ".ServiceResponse")),
                    )],
                ),
                plain("ServiceResponse", &[Field("name", 1, Kind::String)]),
                plain(
                    "ErrorResponse",
                    &[
                        Field("error_code", 1, Kind::Int32),
                        Field("error_message", 2, Kind::String),
                    ],
                ),
            ],
            enums: &[],
            services: &[Service {
                name: "ServerReflection",
                methods: &[Method(
                    "ServerReflectionInfo",
                    (
                        concat!(".grpc.reflection.", $version, ".ServerReflectionRequest"),
                        true,
                    ),
                    (
                        concat!(".grpc.reflection.", $version, ".ServerReflectionResponse"),
                        true,
                    ),
                )],
            }],
        }
    };
}

/// Every file.
pub(super) const FILES: &[File] = &[
    File {
        name: "envoy/service/ratelimit/v3/rls.proto",
        package: "envoy.service.ratelimit.v3",
        imports: &[
            "envoy/config/core/v3/base.proto",
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "google/protobuf/duration.proto",
        ],
        messages: &[
            plain(
                "RateLimitRequest",
                &[
                    Field("domain", 1, Kind::String),
                    Field(
                        "descriptors",
                        2,
                        Kind::Messages(".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor"),
                    ),
                    Field("hits_addend", 3, Kind::Uint32),
                ],
            ),
            Type {
                nested: &[
                    Type {
                        enums: &[Words("Unit", UNITS)],
                        ..plain(
                            "RateLimit",
                            &[
                                Field("name", 3, Kind::String),
                                Field("requests_per_unit", 1, Kind::Uint32),
                                Field(
                                    "unit",
                                    2,
                                    Kind::Enum(
                                        ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit",
                                    ),
                                ),
                            ],
                        )
                    },
                    plain(
                        "DescriptorStatus",
                        &[
                            Field(
                                "code",
                                1,
                                Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code"),
                            ),
                            Field(
                                "current_limit",
                                2,
                                Kind::Message(
                                    ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit",
                                ),
                            ),
                            Field("limit_remaining", 3, Kind::Uint32),
                            Field("duration_until_reset", 4, Kind::Message(DURATION)),
                        ],
                    ),
                ],
                enums: &[Words(
                    "Code",
                    &[("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)],
                )],
                ..plain(
                    "RateLimitResponse",
                    &[
                        Field(
                            "overall_code",
                            1,
                            Kind::Enum(".envoy.service.ratelimit.v3.RateLimitResponse.Code"),
                        ),
                        Field(
                            "statuses",
                            2,
                            Kind::Messages(
                                ".envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
                            ),
                        ),
                        Field(
                            "response_headers_to_add",
                            3,
                            Kind::Messages(".envoy.config.core.v3.HeaderValue"),
                        ),
                        Field("raw_body", 5, Kind::Bytes),
                    ],
                )
            },
        ],
        enums: &[],
        services: &[Service {
            name: "RateLimitService",
            methods: &[Method(
                "ShouldRateLimit",
                (".envoy.service.ratelimit.v3.RateLimitRequest", false),
                (RESPONSE, false),
            )],
        }],
    },
    File {
        imports: &[
            "envoy/type/v3/ratelimit_unit.proto",
            "google/protobuf/wrappers.proto",
        ],
        ..library(
            "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
            "envoy.extensions.common.ratelimit.v3",
            &[Type {
                nested: &[
                    plain(
                        "Entry",
                        &[
                            Field("key", 1, Kind::String),
                            Field("value", 2, Kind::String),
                        ],
                    ),
                    plain(
                        "RateLimitOverride",
                        &[
                            Field("requests_per_unit", 1, Kind::Uint32),
                            Field("unit", 2, Kind::Enum(UNIT)),
                        ],
                    ),
                ],
                ..plain(
                    "RateLimitDescriptor",
                    &[
                        Field(
                            "entries",
                            1,
                            Kind::Messages(
                                ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
                            ),
                        ),
                        Field(
                            "limit",
                            2,
                            Kind::Message(
                                ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
                            ),
                        ),
                        Field(
                            "hits_addend",
                            3,
                            Kind::Message(".google.protobuf.UInt64Value"),
                        ),
                        Field("is_negative_hits", 4, Kind::Bool),
                    ],
                )
            }],
        )
    },
    File {
        enums: &[Words("RateLimitUnit", UNITS)],
        ..library("envoy/type/v3/ratelimit_unit.proto", "envoy.type.v3", &[])
    },
    library(
        "envoy/config/core/v3/base.proto",
        "envoy.config.core.v3",
        &[plain(
            "HeaderValue",
            &[
                Field("key", 1, Kind::String),
                Field("value", 2, Kind::String),
            ],
        )],
    ),
    library(
        "google/protobuf/duration.proto",
        "google.protobuf",
        &[plain(
            "Duration",
            &[
                Field("seconds", 1, Kind::Int64),
                Field("nanos", 2, Kind::Int32),
            ],
        )],
    ),
    library(
        "google/protobuf/wrappers.proto",
        "google.protobuf",
        &[plain("UInt64Value", &[Field("value", 1, Kind::Uint64)])],
    ),
    File {
        name: "grpc/health/v1/health.proto",
        package: "grpc.health.v1",
        imports: &[],
        messages: &[
            plain("HealthCheckRequest", &[Field("service", 1, Kind::String)]),
            Type {
                enums: &[Words(
                    "ServingStatus",
                    &[
                        ("UNKNOWN", 0),
                        ("SERVING", 1),
                        ("NOT_SERVING", 2),
                        ("SERVICE_UNKNOWN", 3),
                    ],
                )],
                ..plain(
                    "HealthCheckResponse",
                    &[Field(
                        "status",
                        1,
                        Kind::Enum(".grpc.health.v1.HealthCheckResponse.ServingStatus"),
                    )],
                )
            },
        ],
        enums: &[],
        services: &[Service {
            name: "Health",
            methods: &[
                Method(
                    "Check",
                    (".grpc.health.v1.HealthCheckRequest", false),
                    (".grpc.health.v1.HealthCheckResponse", false),
                ),
                Method(
                    "Watch",
                    (".grpc.health.v1.HealthCheckRequest", false),
                    (".grpc.health.v1.HealthCheckResponse", true),
                ),
            ],
        }],
    },
    reflection!("v1"),
    reflection!("v1alpha"),
];

impl File {
    /// Whether `symbol` is a message, an enum, a service or a method of the file.
    pub(super) fn defines(&self, symbol: &str) -> bool {
        let methods = |service: &Service| {
            let name = format!("{}.{}", self.package, service.name);
            let mut methods = service.methods.iter();
            name == symbol || methods.any(|method| format!("{name}.{}", method.0) == symbol)
        };
        let mut types = self.types().into_iter();
        types.any(|name| name.strip_prefix('.') == Some(symbol))
            || self.services.iter().any(methods)
    }

    /// The full names of its messages and enums.
    pub(super) fn types(&self) -> Vec<String> {
        let mut names = Vec::new();
        let within = format!(".{}", self.package);
        names.extend(
            self.enums
                .iter()
                .map(|words| format!("{within}.{}", words.0)),
        );
        self.messages
            .iter()
            .for_each(|message| message.names(&within, &mut names));
        names
    }

    /// The full names of the types that its fields and methods refer to.
    #[cfg(test)]
    pub(super) fn uses(&self) -> Vec<String> {
        let mut names = Vec::new();
        self.messages
            .iter()
            .for_each(|message| message.uses(&mut names));
        for method in self.services.iter().flat_map(|service| service.methods) {
            names.extend([method.1.0, method.2.0].map(str::to_owned));
        }
        names
    }

    pub(super) fn descriptor(&self) -> FileDescriptorProto {
        FileDescriptorProto {
            name: self.name.to_owned(),
            package: self.package.to_owned(),
            dependency: self
                .imports
                .iter()
                .map(|import| (*import).to_owned())
                .collect(),
            message_type: self.messages.iter().map(Type::descriptor).collect(),
            enum_type: self.enums.iter().map(Words::descriptor).collect(),
            service: self.services.iter().map(Service::descriptor).collect(),
            syntax: "proto3".to_owned(),
        }
    }
}

impl Type {
    fn names(&self, within: &str, names: &mut Vec<String>) {
        let own = format!("{within}.{}", self.name);
        names.extend(self.enums.iter().map(|words| format!("{own}.{}", words.0)));
        self.nested
            .iter()
            .for_each(|nested| nested.names(&own, names));
        names.push(own);
    }

    #[cfg(test)]
    fn uses(&self, names: &mut Vec<String>) {
        let used = self.fields.iter().filter_map(|field| field.2.type_name());
        names.extend(used.map(str::to_owned));
        self.nested.iter().for_each(|nested| nested.uses(names));
    }

    fn descriptor(&self) -> DescriptorProto {
        DescriptorProto {
            name: self.name.to_owned(),
            field: self.fields.iter().map(Field::descriptor).collect(),
            nested_type: self.nested.iter().map(Self::descriptor).collect(),
            enum_type: self.enums.iter().map(Words::descriptor).collect(),
            oneof_decl: self
                .one_of
                .iter()
                .map(|name| OneofDescriptorProto {
                    name: (*name).to_owned(),
                })
                .collect(),
        }
    }
}

impl Kind {
    /// The number of the type in descriptors.
    const fn number(self) -> i32 {
        match self {
            Self::Int64 => 3,
            Self::Uint64 => 4,
            Self::Int32 => 5,
            Self::Bool => 8,
            Self::String | Self::OneString => 9,
            Self::Message(_) | Self::Messages(_) | Self::OneMessage(_) => 11,
            Self::Bytes | Self::BytesList => 12,
            Self::Uint32 => 13,
            Self::Enum(_) => 14,
        }
    }

    const fn is_list(self) -> bool {
        matches!(self, Self::Messages(_) | Self::BytesList)
    }

    const fn is_one(self) -> bool {
        matches!(self, Self::OneString | Self::OneMessage(_))
    }

    const fn type_name(self) -> Option<&'static str> {
        match self {
            Self::Message(name)
            | Self::Messages(name)
            | Self::OneMessage(name)
            | Self::Enum(name) => Some(name),
            _ => None,
        }
    }
}

impl Field {
    fn descriptor(&self) -> FieldDescriptorProto {
        FieldDescriptorProto {
            name: self.0.to_owned(),
            number: self.1,
            label: if self.2.is_list() { 3 } else { 1 },
            kind: self.2.number(),
            type_name: self.2.type_name().map(str::to_owned),
            oneof_index: self.2.is_one().then_some(0),
        }
    }
}

impl Words {
    fn descriptor(&self) -> EnumDescriptorProto {
        let value = |(name, number): &(&str, i32)| EnumValueDescriptorProto {
            name: (*name).to_owned(),
            number: Some(*number),
        };
        EnumDescriptorProto {
            name: self.0.to_owned(),
            value: self.1.iter().map(value).collect(),
        }
    }
}

impl Service {
    fn descriptor(&self) -> ServiceDescriptorProto {
        let method = |method: &Method| MethodDescriptorProto {
            name: method.0.to_owned(),
            input_type: method.1.0.to_owned(),
            output_type: method.2.0.to_owned(),
            client_streaming: method.1.1,
            server_streaming: method.2.1,
        };
        ServiceDescriptorProto {
            name: self.name.to_owned(),
            method: self.methods.iter().map(method).collect(),
        }
    }
}

/// `google.protobuf.FileDescriptorProto`, as far as it is written here; so are the others.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FileDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    message_type: Vec<DescriptorProto>,
    #[prost(message, repeated, tag = "5")]
    enum_type: Vec<EnumDescriptorProto>,
    #[prost(message, repeated, tag = "6")]
    service: Vec<ServiceDescriptorProto>,
    #[prost(string, tag = "12")]
    syntax: String,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    field: Vec<FieldDescriptorProto>,
    #[prost(message, repeated, tag = "3")]
    nested_type: Vec<DescriptorProto>,
    #[prost(message, repeated, tag = "4")]
    enum_type: Vec<EnumDescriptorProto>,
    #[prost(message, repeated, tag = "8")]
    oneof_decl: Vec<OneofDescriptorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "3")]
    number: i32,
    #[prost(int32, tag = "4")]
    label: i32,
    #[prost(int32, tag = "5")]
    kind: i32,
    #[prost(string, optional, tag = "6")]
    type_name: Option<String>,
    #[prost(int32, optional, tag = "9")]
    oneof_index: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct OneofDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct EnumDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    value: Vec<EnumValueDescriptorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct EnumValueDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, optional, tag = "2")]
    number: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    method: Vec<MethodDescriptorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct MethodDescriptorProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    input_type: String,
    #[prost(string, tag = "3")]
    output_type: String,
    #[prost(bool, tag = "5")]
    client_streaming: bool,
    #[prost(bool, tag = "6")]
    server_streaming: bool,
}
