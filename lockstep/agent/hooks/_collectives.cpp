/* HOT (budget 1,000 ns a collective, its completion included): collectives observed in C++.
 *
 * A boxed kernel at the dispatch key BackendSelect in front of torch's c10d operators, as collectives.py has it in
 * Python, which stays the description of what is noted when. Marks are left in a channel (_channel.h) without the
 * interpreter lock: c10d's bindings release it before they dispatch, and getting it back can cost a training thread 5 ms
 * while another thread computes in Python.
 *
 * Python is asked three things, each once: whether the training is recorded (`wake`), which call sites a process group
 * has (`meet`), which issue slot a pair of ranks has (`meet_peer`). What it answers is kept here. Collectives of tensors on
 * a device are noted by Python: the timeline of the device queues its events there.
 *
 * Built by `lockstep build-hooks` for exactly one version of torch (native_build.py). Nothing is ever unloaded, and what a
 * thread of a backend may touch at the end of the process is never freed: sessions, and the tables in them.
 */

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../_channel.h"

namespace {

constexpr size_t kOperatorsMax = 32; /* five bits of a call site */
constexpr uint64_t kSynchronous = 1 << 5;
constexpr int kSlotShift = 9;
constexpr uint64_t kSlotMask = 0x7F;
constexpr uint64_t kPayloadBytesMax = (1ull << 39) - 1;
constexpr int64_t kNoGraphTask = -1;
constexpr int kNone = -1;

/* Where an operator's arguments stand; kNone: it has none such. */
struct Operator {
  std::string name;
  uint64_t mark = 0; /* index in marks.OPERATORS */
  int arguments = 0;
  int group = kNone;
  int payload = kNone;
  int is_async = kNone;
  int peer = kNone;
  bool is_pair = false;
  bool is_send = false;
};

std::array<Operator, kOperatorsMax> operators;

/* A process group of this process, until Python reports its end. */
struct Group {
  const c10d::ProcessGroup* address;
  uint64_t site; /* call site without operator: group size, issue slot, domain */
};

/* The slot of sends to, or receives from, a rank of a group. */
struct Pair {
  const c10d::ProcessGroup* address;
  int64_t peer;
  bool is_send;
  uint64_t slot;
};

/* One attempt: its channel, and the groups that it met. Never freed: a thread may be in it. The tables are searched from
 * their beginning: a job has some ten groups, and a hash table leaves the caches sooner. */
struct Session {
  LockstepChannel* channel = nullptr;
  std::array<std::atomic<bool>, kOperatorsMax> has_no_future{};
  std::mutex mutex; /* of the tables; held for a look-up, never while Python or torch is called */
  std::vector<Group> groups;
  std::vector<Pair> pairs;

  const Group* find(const c10d::ProcessGroup* address) const {
    for (const Group& group : groups)
      if (group.address == address)
        return &group;
    return nullptr;
  }
};

/* OFF: observe nothing. ASK: ask Python at the next collective whether to record. ON: there is a session. */
enum Mode { OFF, ASK, ON };

std::atomic<int> mode{OFF};
std::atomic<Session*> session{nullptr};
std::atomic<uint64_t> other_slot{kSlotMask};
PyObject* python = nullptr; /* the object that is asked; set and read under the interpreter lock */
std::unique_ptr<torch::Library>* library = nullptr;

std::atomic<int64_t> references{0}; /* held by callbacks of collectives in flight */

/* A reference to a channel, which outlives its buffer and the interpreter. It moves on its way into a callback: each copy
 * would be four atomic operations. */
class ChannelReference {
 public:
  explicit ChannelReference(LockstepChannel* channel) : channel_(channel) {
    channel_->retain(channel_);
    references.fetch_add(1, std::memory_order_relaxed);
  }
  ChannelReference(const ChannelReference& other) : ChannelReference(other.channel_) {}
  ChannelReference(ChannelReference&& other) noexcept : channel_(std::exchange(other.channel_, nullptr)) {}
  ChannelReference& operator=(const ChannelReference&) = delete;
  ~ChannelReference() {
    if (channel_ == nullptr)
      return;
    channel_->release(channel_);
    references.fetch_sub(1, std::memory_order_release);
  }
  void note(uint16_t kind, uint32_t ordinal) const { channel_->note(channel_, kind, ordinal); }

 private:
  LockstepChannel* channel_;
};

/* A collective under way; ordinal -1: it is not recorded. */
struct Issued {
  int64_t ordinal = -1;
  Session* session = nullptr;
  bool synchronous = false;
  bool on_device = false;
};

/* Questions to Python. What a signal handler of the training raises there passes on to the training. */

template <typename... Arguments>
py::object ask(const char* method, Arguments&&... arguments) {
  return py::handle(python).attr(method)(std::forward<Arguments>(arguments)...);
}

/* The session to record in: Python is asked where none is known, or its buffer became inert. */
Session* wake() {
  py::gil_scoped_acquire lock;
  if (python == nullptr || mode.load() == OFF)
    return nullptr;
  ask("wake");
  return mode.load() == ON ? session.load() : nullptr;
}

std::optional<uint64_t> known_site(Session* here, const c10d::ProcessGroup* group) {
  const std::lock_guard<std::mutex> held(here->mutex);
  const Group* found = here->find(group);
  return found == nullptr ? std::nullopt : std::optional<uint64_t>(found->site);
}

/* Call site of a group that is not in the table; none where the agent failed over it. */
std::optional<uint64_t> meet(Session* here, const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  py::gil_scoped_acquire lock;
  const auto address = reinterpret_cast<uintptr_t>(group.get());
  const py::object answer = ask("meet", py::cast(group), address); /* (call site, whether it stays) */
  if (answer.is_none())
    return std::nullopt;
  const auto [site, stays] = answer.cast<std::pair<uint64_t, bool>>();
  if (stays) {
    const std::lock_guard<std::mutex> held(here->mutex);
    if (here->find(group.get()) == nullptr) /* another thread may have met it meanwhile */
      here->groups.push_back({group.get(), site});
  }
  return site;
}

uint64_t meet_peer(
    Session* here, const c10::intrusive_ptr<c10d::ProcessGroup>& group, bool is_send, int64_t peer) {
  py::gil_scoped_acquire lock;
  const py::object answer = ask("meet_peer", py::cast(group), is_send, peer);
  const uint64_t slot = answer.is_none() ? other_slot.load() : answer.cast<uint64_t>();
  const std::lock_guard<std::mutex> held(here->mutex);
  if (here->find(group.get()) != nullptr)
    here->pairs.push_back({group.get(), peer, is_send, slot});
  return slot;
}

/* Ordinal of a collective on a device, -1 where it is not recorded. */
int64_t issue_on_device(uint64_t site, uint64_t payload_bytes) {
  py::gil_scoped_acquire lock;
  if (python == nullptr)
    return -1;
  const py::object answer = ask("issue_on_device", site, payload_bytes);
  return answer.is_none() ? -1 : answer.cast<int64_t>();
}

/* `in_order`: it runs on the current stream, behind what was issued there. */
void complete_on_device(uint32_t ordinal, bool in_order) {
  py::gil_scoped_acquire lock;
  if (python != nullptr)
    ask("complete_on_device", ordinal, in_order);
}

/* An exception of ours, which must not reach the training: the agent stops, as after any other failure. */
void fail(const char* what) noexcept {
  mode.store(OFF);
  try {
    py::gil_scoped_acquire lock;
    if (python != nullptr)
      ask("fail", what);
  } catch (...) { /* nothing is left to report to */
  }
}

/* What a call is about. */

/* As IValue::toCustomClass, without its look-up of the class: the operator's schema has checked that. */
template <typename Held>
c10::intrusive_ptr<Held> held_by(const c10::IValue& value) {
  return c10::static_intrusive_pointer_cast<Held>(value.toObjectRef().getSlot(0).toCapsule());
}

uint64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? static_cast<uint64_t>(tensor.numel()) * tensor.element_size() : 0;
  }
  uint64_t bytes = 0;
  if (value.isList())
    for (const c10::IValue& item : value.toListRef())
      bytes += bytes_of(item);
  return bytes;
}

bool is_on_device(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() && !value.toTensor().is_cpu();
  return value.isList() && !value.toListRef().empty() && is_on_device(value.toListRef()[0]);
}

uint64_t pair_slot(
    Session* here, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Operator& what, int64_t peer) {
  {
    const std::lock_guard<std::mutex> held(here->mutex);
    for (const Pair& pair : here->pairs)
      if (pair.address == group.get() && pair.peer == peer && pair.is_send == what.is_send)
        return pair.slot;
  }
  return meet_peer(here, group, what.is_send, peer);
}

/* Call site without operator; none where the agent failed over the group. */
std::optional<uint64_t> call_site(
    Session* here,
    const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const Operator& what,
    c10::ArrayRef<c10::IValue> given) {
  std::optional<uint64_t> site = known_site(here, group.get());
  if (!site)
    site = meet(here, group);
  if (!site || !what.is_pair)
    return site;
  const uint64_t slot = what.peer == kNone ? other_slot.load() : pair_slot(here, group, what, given[what.peer].toInt());
  return (*site & ~(kSlotMask << kSlotShift)) | slot << kSlotShift;
}

/* The session that records what the calling thread issues now, if any. */
Session* session_here() {
  Session* here = nullptr;
  if (mode.load(std::memory_order_acquire) == ON)
    here = session.load(std::memory_order_acquire);
  LockstepRole role = here == nullptr ? LOCKSTEP_INERT : here->channel->role(here->channel);
  if (role == LOCKSTEP_INERT) {
    here = wake();
    if (here == nullptr)
      return nullptr;
    role = here->channel->role(here->channel);
  }
  if (role == LOCKSTEP_TRAINING_THREAD)
    return here;
  const bool works_for_backward =
      role == LOCKSTEP_OTHER_THREAD && torch::autograd::get_current_graph_task_id() != kNoGraphTask;
  return works_for_backward ? here : nullptr;
}

Issued issue(const Operator& what, const torch::jit::Stack& stack) {
  Issued issued;
  const c10::ArrayRef<c10::IValue> given(stack.data() + stack.size() - what.arguments, what.arguments);
  const auto group = held_by<c10d::ProcessGroup>(given[what.group]);
  Session* here = session_here();
  if (here == nullptr)
    return issued;
  std::optional<uint64_t> site = call_site(here, group, what, given);
  if (here->channel->role(here->channel) == LOCKSTEP_INERT) { /* a new group can begin a new attempt (agent.py) */
    here = session_here();
    site = here == nullptr ? std::nullopt : call_site(here, group, what, given);
  }
  if (!site)
    return issued;
  issued.synchronous = what.is_async != kNone && !given[what.is_async].toBool();
  issued.on_device = is_on_device(given[0]);
  issued.session = here;
  const uint64_t whole_site = *site | what.mark | (issued.synchronous ? kSynchronous : 0);
  const uint64_t payload = what.payload == kNone ? 0 : std::min(bytes_of(given[what.payload]), kPayloadBytesMax);
  issued.ordinal = issued.on_device ? issue_on_device(whole_site, payload)
                                    : here->channel->issue(here->channel, whole_site, payload);
  return issued;
}

/* How its end becomes known. */

c10::intrusive_ptr<c10d::Work> work_of(const torch::jit::Stack& stack) {
  if (stack.empty() || !stack.back().isObject())
    return {}; /* NCCL's synchronous collectives, which run on the current stream, have none */
  return held_by<c10d::Work>(stack.back());
}

/* The future of a Work, none where its backend has none for this operator: which an exception shows, once. */
c10::intrusive_ptr<c10::ivalue::Future> future_of(const Operator& what, const Issued& issued, const torch::jit::Stack& stack) {
  std::atomic<bool>& has_none = issued.session->has_no_future[what.mark];
  if (has_none.load(std::memory_order_relaxed))
    return {};
  const auto work = work_of(stack);
  try {
    return work ? work->getFuture() : nullptr;
  } catch (const std::exception&) {
    has_none.store(true, std::memory_order_relaxed);
    return {};
  }
}

void complete(const Operator& what, const Issued& issued, const torch::jit::Stack& stack) {
  LockstepChannel* channel = issued.session->channel;
  const auto ordinal = static_cast<uint32_t>(issued.ordinal);
  if (issued.on_device) {
    complete_on_device(ordinal, issued.synchronous && !work_of(stack));
    return;
  }
  const auto future = issued.synchronous ? nullptr : future_of(what, issued, stack);
  if (!future) {
    channel->note(channel, LOCKSTEP_EXPECT, ordinal);
  } else if (future->completed()) {
    channel->note(channel, LOCKSTEP_DONE, ordinal);
  } else {
    future->addCallback(
        [reference = ChannelReference(channel), ordinal](c10::ivalue::Future&) {
          reference.note(LOCKSTEP_DONE, ordinal);
        },
        /*uses_future=*/false);
  }
}

/* Our parts are isolated from the training's: exceptions of the collective pass unchanged, ours never do. */
void observe(
    const Operator& what, const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const c10::DispatchKeySet after(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  Issued issued;
  if (mode.load(std::memory_order_relaxed) != OFF) {
    try {
      issued = issue(what, *stack);
    } catch (py::error_already_set&) { /* of a signal handler: our own are caught in Python */
      throw;
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }
  handle.redispatchBoxed(keys & after, stack);
  if (issued.ordinal < 0)
    return;
  try {
    complete(what, issued, *stack);
  } catch (py::error_already_set&) {
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

template <size_t index>
void kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  observe(operators[index], handle, keys, stack);
}

template <size_t... indices>
void implement(torch::Library& into, size_t count, std::index_sequence<indices...>) {
  (
      [&] {
        if (indices < count)
          into.impl(operators[indices].name.c_str(), torch::CppFunction::makeFromBoxedFunction<&kernel<indices>>());
      }(),
      ...);
}

/* What Python calls, under the interpreter lock. */

using Described = std::tuple<std::string, uint64_t, int, int, int, int, int, bool, bool>;

void install(py::object asked, const std::vector<Described>& described, uint64_t no_slot) {
  if (library != nullptr)
    throw std::runtime_error("kernels: already installed in this process");
  if (described.size() > kOperatorsMax)
    throw std::runtime_error("kernels: got more operators than a call site has room for");
  for (size_t index = 0; index < described.size(); index++) {
    Operator& what = operators[index];
    std::tie(
        what.name, what.mark, what.arguments, what.group, what.payload, what.is_async, what.peer, what.is_pair,
        what.is_send) = described[index];
  }
  other_slot.store(no_slot);
  python = asked.release().ptr();
  auto made = std::make_unique<torch::Library>(
      torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  implement(*made, described.size(), std::make_index_sequence<kOperatorsMax>());
  library = new std::unique_ptr<torch::Library>(std::move(made));
  mode.store(ASK);
}

void uninstall() {
  mode.store(OFF);
  delete library;
  library = nullptr;
  Py_CLEAR(python);
}

/* Record into a buffer's channel from now on; groups are met again. */
void attach(const py::capsule& capsule) {
  auto* channel = static_cast<LockstepChannel*>(PyCapsule_GetPointer(capsule.ptr(), LOCKSTEP_CHANNEL_CAPSULE));
  if (channel == nullptr)
    throw py::error_already_set();
  if (channel->version != LOCKSTEP_CHANNEL_VERSION)
    throw std::runtime_error("channel: got another version than these kernels were built for");
  channel->retain(channel); /* as long as its session: for ever */
  auto* made = new Session();
  made->channel = channel;
  session.store(made);
  mode.store(ON);
}

void set_mode(bool asks) {
  mode.store(asks ? ASK : OFF);
}

/* A process group ends: its address may become another one's. */
void forget(uintptr_t address) {
  Session* here = session.load();
  if (here == nullptr)
    return;
  const std::lock_guard<std::mutex> held(here->mutex);
  const auto* ended = reinterpret_cast<const c10d::ProcessGroup*>(address);
  std::erase_if(here->groups, [ended](const Group& group) { return group.address == ended; });
  std::erase_if(here->pairs, [ended](const Pair& pair) { return pair.address == ended; });
}

/* A fork's child is inert until Python sets it up. The tables of its parent may be locked for ever. */
void forked() {
  mode.store(OFF);
  session.store(nullptr);
  references.store(0); /* the threads that held them are not there */
}

/* Whether a collective is in flight whose callback has not run, or not returned yet. */
bool is_in_flight() {
  return references.load(std::memory_order_acquire) > 0;
}

} // namespace

PYBIND11_MODULE(_collectives, module) {
  module.doc() = "Kernels in front of torch's collectives; lockstep/agent/hooks/native.py uses them.";
  module.attr("CHANNEL_VERSION") = LOCKSTEP_CHANNEL_VERSION;
  module.def("install", &install);
  module.def("uninstall", &uninstall);
  module.def("attach", &attach);
  module.def("set_mode", &set_mode);
  module.def("forget", &forget);
  module.def("is_in_flight", &is_in_flight);
  pthread_atfork(nullptr, nullptr, &forked);
}
