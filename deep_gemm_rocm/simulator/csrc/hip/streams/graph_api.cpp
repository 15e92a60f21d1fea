// HIP's graph calls. As in HIP, a graph is used by one thread at a time.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "../base/handles.h"
#include "../base/host_memory.h"
#include "../base/status.h"
#include "../modules/registration.h"
#include "capture.h"
#include "graph.h"

namespace {

Handles<GraphExec>& executables() {
  static auto& handles = *new Handles<GraphExec>("an executable graph");
  return handles;
}

Handles<UserObject>& user_objects() {
  static auto& handles = *new Handles<UserObject>("a user object");
  return handles;
}

// ---- work from the caller's descriptions

constexpr char kDescription[] = "the description";

HostWork host_work(const hipHostNodeParams& parameters) {
  require_callable(reinterpret_cast<const void*>(parameters.fn), "the function");
  return {parameters.fn, parameters.userData};
}

GraphWork graph_work(hipGraph_t graph) { return {graph_of(graph)->clone()}; }

RecordWork record_work(hipEvent_t event) {
  event_of(event);
  return {event};
}

WaitWork wait_work(hipEvent_t event) {
  event_of(event);
  return {event};
}

Work described_work(In<hipGraphNodeParams> parameters) {
  const hipGraphNodeParams p = parameters.read(kDescription);
  switch (p.type) {
    case hipGraphNodeTypeKernel: return KernelWork::described_by(p.kernel);
    case hipGraphNodeTypeMemcpy: return CopyWork::described_by(p.memcpy.copyParams);
    case hipGraphNodeTypeMemset: return FillWork::described_by(p.memset);
    case hipGraphNodeTypeHost: return host_work(p.host);
    case hipGraphNodeTypeGraph: return graph_work(p.graph);
    case hipGraphNodeTypeEmpty: return EmptyWork{};
    case hipGraphNodeTypeWaitEvent: return wait_work(p.event);
    case hipGraphNodeTypeEventRecord: return record_work(p.event);
  }
  fail(hipErrorNotSupported, "the simulated MI300X has no graph nodes of type %d", static_cast<int>(p.type));
}

// ---- nodes

void add_node(Out<hipGraphNode_t> out, hipGraph_t graph, In<hipGraphNode_t> dependencies, size_t count, Work work) {
  require(out, "the output pointer");
  const auto found = graph_of(graph);
  std::vector<GraphNode*> before = nodes_of(found.get(), dependencies, count);
  std::vector<GraphNode*> sorted = before;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    fail(hipErrorInvalidValue, "a node is among the dependencies twice");
  }
  out.give(found->add(std::move(work), std::move(before)));
}

template <class Kind>
Kind& work_of(GraphNode& node) {
  if (auto* work = std::get_if<Kind>(&node.work)) return *work;
  fail(hipErrorInvalidValue, "node %p is of another type: %d", static_cast<void*>(&node),
       static_cast<int>(type_of(node.work)));
}

void replace(GraphNode& node, Work work) {
  if (type_of(work) != type_of(node.work)) {
    fail(hipErrorInvalidValue, "node %p is of type %d, not %d", static_cast<void*>(&node),
         static_cast<int>(type_of(node.work)), static_cast<int>(type_of(work)));
  }
  if (auto* child = std::get_if<GraphWork>(&node.work)) forget_graph(*child->graph);
  if (auto* child = std::get_if<GraphWork>(&work)) child->graph->is_child = true;
  node.work = std::move(work);
}

void set_work(hipGraphNode_t node, Work work) { replace(*node_of(node), std::move(work)); }

void set_exec_work(hipGraphExec_t exec, hipGraphNode_t node, Work work) {
  replace(executables().get(exec)->own(node_of(node).get()), std::move(work));
}

// Fills the caller's array as far as there is room. Without an array only the length is returned.
template <class Value>
void give(const std::vector<Value>& values, Out<Value> out, InOut<size_t> count) {
  require(count, "the count");
  if (!out) return count.give(values.size());
  const size_t length = count.read("the count");
  allow(out, "the array", length);
  for (size_t i = 0; i < length; ++i) out.give(i, i < values.size() ? values[i] : nullptr);
  count.give(std::min(length, values.size()));
}

// ---- updates

// Compares the structure of two graphs. `where` is the second graph's first differing node, null where there is none.
hipGraphExecUpdateResult compare(const Graph& graph, const Graph& other, GraphNode*& where) {
  where = nullptr;
  if (graph.nodes.size() != other.nodes.size()) return hipGraphExecUpdateErrorTopologyChanged;
  const auto places = [](const Graph& of, const GraphNode& node) {
    std::vector<size_t> result;
    for (const GraphNode* dependency : node.dependencies) {
      for (size_t i = 0; i < of.nodes.size(); ++i) {
        if (of.nodes[i].get() == dependency) result.push_back(i);
      }
    }
    std::sort(result.begin(), result.end());
    return result;
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode &a = *graph.nodes[i], &b = *other.nodes[i];
    where = other.nodes[i].get();
    if (type_of(a.work) != type_of(b.work)) return hipGraphExecUpdateErrorNodeTypeChanged;
    if (places(graph, a) != places(other, b)) return hipGraphExecUpdateErrorTopologyChanged;
    if (const auto* child = std::get_if<GraphWork>(&a.work)) {
      const auto result = compare(*child->graph, *std::get<GraphWork>(b.work).graph, where);
      if (result != hipGraphExecUpdateSuccess) return result;
    }
  }
  where = nullptr;
  return hipGraphExecUpdateSuccess;
}

void instantiate(Out<hipGraphExec_t> out, hipGraph_t graph, unsigned long long flags) {
  require(out, "the output pointer");
  out.give(executables().add(std::make_shared<GraphExec>(*graph_of(graph), flags)));
}

// ---- dot

const char* name_of(hipGraphNodeType type) {
  static const char* const names[] = {"kernel", "memcpy", "memset", "host", "graph", "empty", "wait", "record"};
  return names[type];
}

std::string dot(const Graph& graph) {
  std::string text = "digraph {\n";
  const auto number = [&](const GraphNode* node) {
    size_t i = 0;
    while (graph.nodes[i].get() != node) ++i;
    return std::to_string(i);
  };
  for (const auto& node : graph.nodes) {
    std::string label = name_of(type_of(node->work));
    if (const auto* kernel = std::get_if<KernelWork>(&node->work)) label += " " + kernel->function->kernel->name;
    text += "  " + number(node.get()) + " [label=\"" + label + "\"]\n";
    for (const GraphNode* dependency : node->dependencies)
      text += "  " + number(dependency) + " -> " + number(node.get()) + "\n";
  }
  return text + "}\n";
}

}  // namespace

void release_user_object(hipUserObject_t handle, unsigned count) {
  const auto object = user_objects().get(handle);
  if (count > object->references) {
    fail(hipErrorInvalidValue, "%u references released, of %u", count, object->references);
  }
  object->references -= count;
  if (object->references > 0) return;
  user_objects().remove(handle);
  const MayFork may_fork;
  object->destroy(object->object);
}

// ---- graphs

HIP_API hipError_t hipGraphCreate(Out<hipGraph_t> graph, unsigned flags) {
  return api_giving(__func__, graph, "the output pointer", [&] {
    if (flags != 0) fail(hipErrorInvalidValue, "flags must be 0, not %#x", flags);
    return handle_of(std::make_shared<Graph>());
  });
}

HIP_API hipError_t hipGraphDestroy(hipGraph_t graph) {
  return api(__func__, [&] {
    const auto found = graph_of(graph);
    if (found->is_child) fail(hipErrorInvalidValue, "the graph belongs to a node of another one");
    require_not_captured_into(*found);
    forget_graph(*found);
  });
}

HIP_API hipError_t hipGraphClone(Out<hipGraph_t> clone, hipGraph_t graph) {
  return api_giving(__func__, clone, "the output pointer", [&] { return handle_of(graph_of(graph)->clone()); });
}

HIP_API hipError_t hipGraphNodeFindInClone(Out<hipGraphNode_t> node, hipGraphNode_t original, hipGraph_t clone) {
  return api(__func__, [&] {
    require(node, "the output pointer");
    GraphNode* const found = graph_of(clone)->find_clone(node_of(original).get());
    node.give(found);
    if (!found) fail(hipErrorInvalidValue, "the graph was not cloned from the node's");
  });
}

HIP_API hipError_t hipGraphGetNodes(hipGraph_t graph, Out<hipGraphNode_t> nodes, InOut<size_t> count) {
  return api(__func__, [&] {
    std::vector<GraphNode*> all;
    for (const auto& node : graph_of(graph)->nodes) all.push_back(node.get());
    give(all, nodes, count);
  });
}

HIP_API hipError_t hipGraphGetRootNodes(hipGraph_t graph, Out<hipGraphNode_t> nodes, InOut<size_t> count) {
  return api(__func__, [&] {
    std::vector<GraphNode*> roots;
    for (const auto& node : graph_of(graph)->nodes) {
      if (node->dependencies.empty()) roots.push_back(node.get());
    }
    give(roots, nodes, count);
  });
}

HIP_API hipError_t hipGraphGetEdges(hipGraph_t graph, Out<hipGraphNode_t> from, Out<hipGraphNode_t> to,
                                    InOut<size_t> count) {
  return api(__func__, [&] {
    require(count, "the count");
    if (!from != !to) fail(hipErrorInvalidValue, "one of the two arrays is null");
    std::vector<GraphNode*> begins, ends;
    for (const auto& node : graph_of(graph)->nodes) {
      for (GraphNode* dependency : node->dependencies) {
        begins.push_back(dependency);
        ends.push_back(node.get());
      }
    }
    size_t same = count.read("the count");
    allow(from, "the array", same);
    allow(to, "the array", same);
    give(begins, from, InOut<size_t>(&same));
    give(ends, to, count);
  });
}

HIP_API hipError_t hipGraphAddDependencies(hipGraph_t graph, In<hipGraphNode_t> from, In<hipGraphNode_t> to,
                                           size_t count) {
  return api(__func__, [&] {
    const auto found = graph_of(graph);
    const auto begins = nodes_of(found.get(), from, count), ends = nodes_of(found.get(), to, count);
    for (size_t i = 0; i < count; ++i) {
      auto& dependencies = ends[i]->dependencies;
      if (begins[i] == ends[i]) fail(hipErrorInvalidValue, "a node can't depend on itself");
      if (std::find(dependencies.begin(), dependencies.end(), begins[i]) != dependencies.end()) {
        fail(hipErrorInvalidValue, "dependency %zu exists already", i);
      }
      dependencies.push_back(begins[i]);
    }
  });
}

HIP_API hipError_t hipGraphRemoveDependencies(hipGraph_t graph, In<hipGraphNode_t> from, In<hipGraphNode_t> to,
                                              size_t count) {
  return api(__func__, [&] {
    const auto found = graph_of(graph);
    const auto begins = nodes_of(found.get(), from, count), ends = nodes_of(found.get(), to, count);
    for (size_t i = 0; i < count; ++i) {
      auto& dependencies = ends[i]->dependencies;
      const auto edge = std::find(dependencies.begin(), dependencies.end(), begins[i]);
      if (edge == dependencies.end()) fail(hipErrorInvalidValue, "dependency %zu does not exist", i);
      dependencies.erase(edge);
    }
  });
}

HIP_API hipError_t hipGraphDebugDotPrint(hipGraph_t graph, Text path, unsigned) {
  return api(__func__, [&] {
    const std::string name = path.read("the path");
    const std::string text = dot(*graph_of(graph));
    FILE* file = std::fopen(name.c_str(), "we");
    if (!file) fail(hipErrorOperatingSystem, "%s: %s", name.c_str(), std::strerror(errno));
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if ((std::fclose(file) != 0) || !written) fail(hipErrorOperatingSystem, "%s could not be written", name.c_str());
  });
}

// ---- nodes of every type

HIP_API hipError_t hipGraphAddNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                   size_t count, In<hipGraphNodeParams> parameters) {
  return api(__func__, [&] { add_node(node, graph, dependencies, count, described_work(parameters)); });
}

HIP_API hipError_t hipGraphNodeSetParams(hipGraphNode_t node, In<hipGraphNodeParams> parameters) {
  return api(__func__, [&] { set_work(node, described_work(parameters)); });
}

HIP_API hipError_t hipGraphExecNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,
                                             In<hipGraphNodeParams> parameters) {
  return api(__func__, [&] { set_exec_work(exec, node, described_work(parameters)); });
}

HIP_API hipError_t hipGraphDestroyNode(hipGraphNode_t node) {
  return api(__func__, [&] {
    const auto found = node_of(node);
    require_not_captured_into(*found->graph);
    found->graph->remove(node);
  });
}

HIP_API hipError_t hipGraphNodeGetType(hipGraphNode_t node, Out<hipGraphNodeType> type) {
  return api_giving(__func__, type, "the type", [&] { return type_of(node_of(node)->work); });
}

HIP_API hipError_t hipGraphNodeGetDependencies(hipGraphNode_t node, Out<hipGraphNode_t> dependencies,
                                               InOut<size_t> count) {
  return api(__func__, [&] { give(node_of(node)->dependencies, dependencies, count); });
}

HIP_API hipError_t hipGraphNodeGetDependentNodes(hipGraphNode_t node, Out<hipGraphNode_t> dependents,
                                                 InOut<size_t> count) {
  return api(__func__, [&] {
    const auto found = node_of(node);
    std::vector<GraphNode*> all;
    for (const auto& other : found->graph->nodes) {
      const auto& before = other->dependencies;
      if (std::find(before.begin(), before.end(), node) != before.end()) all.push_back(other.get());
    }
    give(all, dependents, count);
  });
}

HIP_API hipError_t hipGraphAddEmptyNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                        size_t count) {
  return api(__func__, [&] { add_node(node, graph, dependencies, count, EmptyWork{}); });
}

// ---- kernels

HIP_API hipError_t hipGraphAddKernelNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                         size_t count, In<hipKernelNodeParams> parameters) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, KernelWork::described_by(parameters.read(kDescription)));
  });
}

HIP_API hipError_t hipGraphKernelNodeGetParams(hipGraphNode_t node, Out<hipKernelNodeParams> parameters) {
  return api_giving(__func__, parameters, "the description", [&] {
    const auto found = node_of(node);
    return work_of<KernelWork>(*found).description(found->parameters);
  });
}

HIP_API hipError_t hipGraphKernelNodeSetParams(hipGraphNode_t node, In<hipKernelNodeParams> parameters) {
  return api(__func__, [&] { set_work(node, KernelWork::described_by(parameters.read(kDescription))); });
}

HIP_API hipError_t hipGraphExecKernelNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,
                                                   In<hipKernelNodeParams> parameters) {
  return api(__func__, [&] { set_exec_work(exec, node, KernelWork::described_by(parameters.read(kDescription))); });
}

// ---- copies

HIP_API hipError_t hipGraphAddMemcpyNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                         size_t count, In<hipMemcpy3DParms> parameters) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, CopyWork::described_by(parameters.read(kDescription)));
  });
}

HIP_API hipError_t hipGraphMemcpyNodeGetParams(hipGraphNode_t node, Out<hipMemcpy3DParms> parameters) {
  return api_giving(__func__, parameters, "the description", [&] {
    return work_of<CopyWork>(*node_of(node)).description();
  });
}

HIP_API hipError_t hipGraphMemcpyNodeSetParams(hipGraphNode_t node, In<hipMemcpy3DParms> parameters) {
  return api(__func__, [&] { set_work(node, CopyWork::described_by(parameters.read(kDescription))); });
}

HIP_API hipError_t hipGraphExecMemcpyNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,
                                                   In<hipMemcpy3DParms> parameters) {
  return api(__func__, [&] { set_exec_work(exec, node, CopyWork::described_by(parameters.read(kDescription))); });
}

HIP_API hipError_t hipGraphAddMemcpyNode1D(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                           size_t count, void* destination, const void* source, size_t size,
                                           hipMemcpyKind kind) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, CopyWork::of_bytes(destination, source, size, kind));
  });
}

HIP_API hipError_t hipGraphMemcpyNodeSetParams1D(hipGraphNode_t node, void* destination, const void* source,
                                                 size_t size, hipMemcpyKind kind) {
  return api(__func__, [&] { set_work(node, CopyWork::of_bytes(destination, source, size, kind)); });
}

HIP_API hipError_t hipGraphExecMemcpyNodeSetParams1D(hipGraphExec_t exec, hipGraphNode_t node, void* destination,
                                                     const void* source, size_t size, hipMemcpyKind kind) {
  return api(__func__, [&] { set_exec_work(exec, node, CopyWork::of_bytes(destination, source, size, kind)); });
}

HIP_API hipError_t hipGraphAddMemcpyNodeToSymbol(Out<hipGraphNode_t> node, hipGraph_t graph,
                                                 In<hipGraphNode_t> dependencies, size_t count, const void* symbol,
                                                 const void* source, size_t size, size_t offset, hipMemcpyKind) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, copy_to_symbol(symbol, source, size, offset));
  });
}

HIP_API hipError_t hipGraphMemcpyNodeSetParamsToSymbol(hipGraphNode_t node, const void* symbol, const void* source,
                                                       size_t size, size_t offset, hipMemcpyKind) {
  return api(__func__, [&] { set_work(node, copy_to_symbol(symbol, source, size, offset)); });
}

HIP_API hipError_t hipGraphExecMemcpyNodeSetParamsToSymbol(hipGraphExec_t exec, hipGraphNode_t node, const void* symbol,
                                                           const void* source, size_t size, size_t offset,
                                                           hipMemcpyKind) {
  return api(__func__, [&] { set_exec_work(exec, node, copy_to_symbol(symbol, source, size, offset)); });
}

HIP_API hipError_t hipGraphAddMemcpyNodeFromSymbol(Out<hipGraphNode_t> node, hipGraph_t graph,
                                                   In<hipGraphNode_t> dependencies, size_t count, void* destination,
                                                   const void* symbol, size_t size, size_t offset, hipMemcpyKind) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, copy_from_symbol(destination, symbol, size, offset));
  });
}

HIP_API hipError_t hipGraphMemcpyNodeSetParamsFromSymbol(hipGraphNode_t node, void* destination, const void* symbol,
                                                         size_t size, size_t offset, hipMemcpyKind) {
  return api(__func__, [&] { set_work(node, copy_from_symbol(destination, symbol, size, offset)); });
}

HIP_API hipError_t hipGraphExecMemcpyNodeSetParamsFromSymbol(hipGraphExec_t exec, hipGraphNode_t node,
                                                             void* destination, const void* symbol, size_t size,
                                                             size_t offset, hipMemcpyKind) {
  return api(__func__, [&] { set_exec_work(exec, node, copy_from_symbol(destination, symbol, size, offset)); });
}

// ---- fills

HIP_API hipError_t hipGraphAddMemsetNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                         size_t count, In<hipMemsetParams> parameters) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, FillWork::described_by(parameters.read(kDescription)));
  });
}

HIP_API hipError_t hipDrvGraphAddMemsetNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                            size_t count, In<hipMemsetParams> parameters, hipCtx_t) {
  return api(__func__, [&] {
    add_node(node, graph, dependencies, count, FillWork::described_by(parameters.read(kDescription)));
  });
}

HIP_API hipError_t hipGraphMemsetNodeGetParams(hipGraphNode_t node, Out<hipMemsetParams> parameters) {
  return api_giving(__func__, parameters, "the description", [&] {
    return work_of<FillWork>(*node_of(node)).description();
  });
}

HIP_API hipError_t hipGraphMemsetNodeSetParams(hipGraphNode_t node, In<hipMemsetParams> parameters) {
  return api(__func__, [&] { set_work(node, FillWork::described_by(parameters.read(kDescription))); });
}

HIP_API hipError_t hipGraphExecMemsetNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,
                                                   In<hipMemsetParams> parameters) {
  return api(__func__, [&] { set_exec_work(exec, node, FillWork::described_by(parameters.read(kDescription))); });
}

HIP_API hipError_t hipDrvGraphExecMemsetNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,
                                                      In<hipMemsetParams> parameters, hipCtx_t) {
  return api(__func__, [&] { set_exec_work(exec, node, FillWork::described_by(parameters.read(kDescription))); });
}

// ---- host functions

HIP_API hipError_t hipGraphAddHostNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                       size_t count, In<hipHostNodeParams> parameters) {
  return api(__func__, [&] { add_node(node, graph, dependencies, count, host_work(parameters.read(kDescription))); });
}

HIP_API hipError_t hipGraphHostNodeGetParams(hipGraphNode_t node, Out<hipHostNodeParams> parameters) {
  return api(__func__, [&] {
    require(parameters, "the description");
    const auto found = node_of(node);
    const HostWork& work = work_of<HostWork>(*found);
    parameters.give({work.function, work.user_data});
  });
}

HIP_API hipError_t hipGraphHostNodeSetParams(hipGraphNode_t node, In<hipHostNodeParams> parameters) {
  return api(__func__, [&] { set_work(node, host_work(parameters.read(kDescription))); });
}

HIP_API hipError_t hipGraphExecHostNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node,
                                                 In<hipHostNodeParams> parameters) {
  return api(__func__, [&] { set_exec_work(exec, node, host_work(parameters.read(kDescription))); });
}

// ---- graphs within graphs

HIP_API hipError_t hipGraphAddChildGraphNode(Out<hipGraphNode_t> node, hipGraph_t graph,
                                             In<hipGraphNode_t> dependencies, size_t count, hipGraph_t child) {
  return api(__func__, [&] { add_node(node, graph, dependencies, count, graph_work(child)); });
}

HIP_API hipError_t hipGraphChildGraphNodeGetGraph(hipGraphNode_t node, Out<hipGraph_t> graph) {
  return api_giving(__func__, graph, "the output pointer", [&] {
    return handle_of(work_of<GraphWork>(*node_of(node)).graph);
  });
}

HIP_API hipError_t hipGraphExecChildGraphNodeSetParams(hipGraphExec_t exec, hipGraphNode_t node, hipGraph_t child) {
  return api(__func__, [&] { set_exec_work(exec, node, graph_work(child)); });
}

// ---- events

HIP_API hipError_t hipGraphAddEventRecordNode(Out<hipGraphNode_t> node, hipGraph_t graph,
                                              In<hipGraphNode_t> dependencies, size_t count, hipEvent_t event) {
  return api(__func__, [&] { add_node(node, graph, dependencies, count, record_work(event)); });
}

HIP_API hipError_t hipGraphEventRecordNodeGetEvent(hipGraphNode_t node, Out<hipEvent_t> event) {
  return api_giving(__func__, event, "the output pointer", [&] { return work_of<RecordWork>(*node_of(node)).event; });
}

HIP_API hipError_t hipGraphEventRecordNodeSetEvent(hipGraphNode_t node, hipEvent_t event) {
  return api(__func__, [&] { set_work(node, record_work(event)); });
}

HIP_API hipError_t hipGraphExecEventRecordNodeSetEvent(hipGraphExec_t exec, hipGraphNode_t node, hipEvent_t event) {
  return api(__func__, [&] { set_exec_work(exec, node, record_work(event)); });
}

HIP_API hipError_t hipGraphAddEventWaitNode(Out<hipGraphNode_t> node, hipGraph_t graph, In<hipGraphNode_t> dependencies,
                                            size_t count, hipEvent_t event) {
  return api(__func__, [&] { add_node(node, graph, dependencies, count, wait_work(event)); });
}

HIP_API hipError_t hipGraphEventWaitNodeGetEvent(hipGraphNode_t node, Out<hipEvent_t> event) {
  return api_giving(__func__, event, "the output pointer", [&] { return work_of<WaitWork>(*node_of(node)).event; });
}

HIP_API hipError_t hipGraphEventWaitNodeSetEvent(hipGraphNode_t node, hipEvent_t event) {
  return api(__func__, [&] { set_work(node, wait_work(event)); });
}

HIP_API hipError_t hipGraphExecEventWaitNodeSetEvent(hipGraphExec_t exec, hipGraphNode_t node, hipEvent_t event) {
  return api(__func__, [&] { set_exec_work(exec, node, wait_work(event)); });
}

// ---- executable graphs

HIP_API hipError_t hipGraphInstantiate(Out<hipGraphExec_t> exec, hipGraph_t graph, Out<hipGraphNode_t> error_node,
                                       Out<char> log, size_t log_bytes) {
  return api(__func__, [&] {
    require(exec, "the output pointer");
    allow(error_node, "the output pointer for the node");
    if (log) give_text(log, log_bytes, "", "the log");
    error_node.give_if_wanted(nullptr);
    instantiate(exec, graph, 0);
  });
}

HIP_API hipError_t hipGraphInstantiateWithFlags(Out<hipGraphExec_t> exec, hipGraph_t graph, unsigned long long flags) {
  return api(__func__, [&] { instantiate(exec, graph, flags); });
}

HIP_API hipError_t hipGraphInstantiateWithParams(Out<hipGraphExec_t> exec, hipGraph_t graph,
                                                 InOut<hipGraphInstantiateParams> parameters) {
  return api(__func__, [&] {
    require(exec, "the output pointer");
    require(parameters, "the parameters");
    hipGraphInstantiateParams p = parameters.read("the parameters");
    p.errNode_out = nullptr;
    p.result_out = hipGraphInstantiateError;
    parameters.give(p);
    instantiate(exec, graph, p.flags);
    p.result_out = hipGraphInstantiateSuccess;
    parameters.give(p);
  });
}

HIP_API hipError_t hipGraphExecGetFlags(hipGraphExec_t exec, Out<unsigned long long> flags) {
  return api_giving(__func__, flags, "flags", [&] { return executables().get(exec)->flags; });
}

HIP_API hipError_t hipGraphExecDestroy(hipGraphExec_t exec) {
  return api(__func__, [&] { executables().remove(exec); });
}

HIP_API hipError_t hipGraphUpload(hipGraphExec_t exec, hipStream_t stream) {
  return api(__func__, [&] {
    require_stream(stream);
    executables().get(exec);
  });
}

// In a capturing stream the executable graph becomes a node.
HIP_API hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
  return api(__func__, [&] {
    const auto found = executables().get(exec);
    const auto target = stream_of(stream);
    Work node = GraphWork{found->graph};
    if (is_capturing(target.get())) node = GraphWork{found->graph->clone()};
    if (!capture_work(target.get(), node)) found->run();
  });
}

HIP_API hipError_t hipGraphNodeSetEnabled(hipGraphExec_t exec, hipGraphNode_t node, unsigned enabled) {
  return api(__func__, [&] {
    GraphNode& own = executables().get(exec)->own(node_of(node).get());
    if (type_of(own.work) > hipGraphNodeTypeMemset) {
      fail(hipErrorInvalidValue, "only kernels, copies and fills can be switched off");
    }
    own.enabled = enabled != 0;
  });
}

HIP_API hipError_t hipGraphNodeGetEnabled(hipGraphExec_t exec, hipGraphNode_t node, Out<unsigned> enabled) {
  return api_giving(__func__, enabled, "isEnabled", [&] {
    return executables().get(exec)->own(node_of(node).get()).enabled;
  });
}

HIP_API hipError_t hipGraphExecUpdate(hipGraphExec_t exec, hipGraph_t graph, Out<hipGraphNode_t> error_node,
                                      Out<hipGraphExecUpdateResult> result) {
  return api(__func__, [&] {
    require(error_node, "the output pointer for the node");
    require(result, "the output pointer for the result");
    const auto executable = executables().get(exec);
    const auto source = graph_of(graph);
    GraphNode* where = nullptr;
    const hipGraphExecUpdateResult difference = compare(*executable->graph, *source, where);
    error_node.give(where);
    result.give(difference);
    if (difference != hipGraphExecUpdateSuccess) {
      fail(hipErrorGraphExecUpdateFailure, "the graph differs in more than its nodes' parameters");
    }
    const std::shared_ptr<Graph> fresh = source->clone();
    for (size_t i = 0; i < fresh->nodes.size(); ++i) {
      fresh->nodes[i]->enabled = executable->graph->nodes[i]->enabled;
      fresh->nodes[i]->original = executable->graph->nodes[i]->original;
    }
    executable->order = fresh->in_order();
    executable->graph = fresh;
  });
}

// ---- user objects

HIP_API hipError_t hipUserObjectCreate(Out<hipUserObject_t> object, void* pointer, hipHostFn_t destroy,
                                       unsigned references, unsigned flags) {
  return api_giving(__func__, object, "the output pointer", [&] {
    require_callable(reinterpret_cast<const void*>(destroy), "the destructor");
    if (references == 0) fail(hipErrorInvalidValue, "an object needs a reference at least");
    if (flags != 1) fail(hipErrorInvalidValue, "flags must be hipUserObjectNoDestructorSync (1), not %#x", flags);
    return user_objects().add(std::make_shared<UserObject>(UserObject{pointer, destroy, references}));
  });
}

HIP_API hipError_t hipUserObjectRetain(hipUserObject_t object, unsigned count) {
  return api(__func__, [&] { user_objects().get(object)->references += count; });
}

HIP_API hipError_t hipUserObjectRelease(hipUserObject_t object, unsigned count) {
  return api(__func__, [&] { release_user_object(object, count); });
}

// With hipGraphUserObjectMove (1) the graph takes over references from the caller.
HIP_API hipError_t hipGraphRetainUserObject(hipGraph_t graph, hipUserObject_t object, unsigned count, unsigned flags) {
  return api(__func__, [&] {
    if (flags > 1) fail(hipErrorInvalidValue, "flags must be 0 or hipGraphUserObjectMove (1), not %#x", flags);
    const auto found = graph_of(graph);
    const auto user = user_objects().get(object);
    if (flags == 0) user->references += count;
    found->user_objects[object] += count;
  });
}

HIP_API hipError_t hipGraphReleaseUserObject(hipGraph_t graph, hipUserObject_t object, unsigned count) {
  return api(__func__, [&] {
    const auto found = graph_of(graph);
    const auto held = found->user_objects.find(object);
    if (held == found->user_objects.end() || held->second < count) {
      fail(hipErrorInvalidValue, "the graph has fewer than %u references to the object", count);
    }
    held->second -= count;
    if (held->second == 0) found->user_objects.erase(held);
    release_user_object(object, count);
  });
}
