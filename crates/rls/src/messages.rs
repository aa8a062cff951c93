//! The messages of the services, as far as they are read or written here. Field numbers are those
//! of the public definitions; [`super::reflection`] describes them to clients.

use prost::{Enumeration, Message};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// Numbers to take instead of those of the rule.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) raw_body: bytes::Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl Unit {
    /// The units and their lengths in seconds: a month has 30 days and a year 365.
    const LENGTHS: [(Self, u64); 7] = [
        (Self::Second, 1),
        (Self::Minute, 60),
        (Self::Hour, 3_600),
        (Self::Day, 86_400),
        (Self::Week, 7 * 86_400),
        (Self::Month, 30 * 86_400),
        (Self::Year, 365 * 86_400),
    ];

    pub(crate) fn of_secs(seconds: u64) -> Self {
        let mut units = Self::LENGTHS.into_iter();
        let found = units.find(|(_, length)| *length == seconds);
        found.map_or(Self::Unknown, |(unit, _)| unit)
    }

    /// Its seconds; `None`: it is not known.
    pub(crate) fn secs(self) -> Option<u64> {
        let mut units = Self::LENGTHS.into_iter();
        let found = units.find(|(unit, _)| *unit == self);
        found.map(|(_, length)| length)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(crate) status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionRequest {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(oneof = "ReflectionAsked", tags = "3, 4, 5, 6, 7")]
    pub(crate) asked: Option<ReflectionAsked>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ReflectionAsked {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExtensionRequest {
    #[prost(string, tag = "1")]
    pub(crate) containing_type: String,
    #[prost(int32, tag = "2")]
    pub(crate) extension_number: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionResponse {
    #[prost(string, tag = "1")]
    pub(crate) valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) original_request: Option<ReflectionRequest>,
    #[prost(oneof = "ReflectionReply", tags = "4, 6, 7")]
    pub(crate) reply: Option<ReflectionReply>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum ReflectionReply {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Error(ReflectionError),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Services {
    #[prost(message, repeated, tag = "1")]
    pub(crate) services: Vec<ServiceName>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServiceName {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Why there is no response to a reflection request.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReflectionError {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}
