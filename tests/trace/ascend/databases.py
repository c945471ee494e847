"""Small databases in the schema of torch_npu's exporter."""

import sqlite3
from pathlib import Path

STRINGS = {
    1: "AI_CORE", 2: "MatMulV2", 3: "aclnnMm_MatMul", 4: "4096,512;512,64", 5: "DT_BF16;DT_BF16", 6: "ND;ND",
    7: "SDMA_SQE", 8: "MEMCPY_ASYNC", 9: "hcom_allReduce__868_0_1", 10: "10.0.0.1%eth0_60000_0_17", 11: "launch",
    12: "aten::mm", 13: "Enqueue", 14: "Dequeue@aclnnMm", 15: "ProfilerStep#7", 16: "512,64;\r\n", 17: "float;\r\nScalar",
    18: "model.py(3): forward", 19: "train.py(9): main", 20: "aic_mac_ratio", 21: "aic_total_cycles", 22: "Notify_Wait",
    23: "my range", 24: "unknown counter", 25: "train.py(9): main frame",
}  # fmt: skip
HOST = 77 << 32
"""Process 77, to which a thread's number is added."""

SCHEMA = """
CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,
  globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER);
CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY, {blocks} INTEGER, mixBlockNum INTEGER,
  taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, inputShapes INTEGER,
  outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, waitNs INTEGER);
CREATE TABLE COMMUNICATION_TASK_INFO (name INTEGER, globalTaskId INTEGER);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER,
  opId INTEGER, dataType INTEGER, count NUMERIC, deviceId INTEGER);
CREATE TABLE ENUM_HCCL_DATA_TYPE (id INTEGER, name TEXT);
CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER, name INTEGER);
CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER,
  sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, callchainId INTEGER,
  type INTEGER);
CREATE TABLE CONNECTION_IDS (id INTEGER, connectionId INTEGER);
CREATE TABLE PYTORCH_CALLCHAINS (id INTEGER, stack INTEGER, stackDepth INTEGER);
CREATE TABLE GC_RECORD (startNs INTEGER, endNs INTEGER, globalTid INTEGER);
CREATE TABLE MSTX_EVENTS (startNs INTEGER, endNs INTEGER, message INTEGER, globalTid INTEGER);
CREATE TABLE TASK_PMU_INFO (globalTaskId INTEGER, name INTEGER, value NUMERIC);
"""
T = 1_736_405_443_863_674_400


def make(path: Path, *, blocks="blockNum") -> Path:
    """Write one launch through the queue, a copy, a part and a collective; return the file."""
    rows = {
        "TASK": [
            (T + 200, T + 230, 3, 5, 0, 0, 1, 0, 7, 11, 1),
            (T + 240, T + 250, 3, 4294967295, 1, 0, 8, 0, 7, 12, 1),
            (T + 260, T + 270, 3, 6, 2, 0, 22, 0, 9, 13, 1),
        ],
        "COMPUTE_TASK_INFO": [(3, 0, 20, 0, 1, 2, 6, 5, 4, 6, 5, 4, 17)],
        "COMMUNICATION_TASK_INFO": [(9, 2)],
        "COMMUNICATION_OP": [(9, T + 260, T + 300, 6, 10, 0, 11, 4096, 3)],
        "ENUM_HCCL_DATA_TYPE": [(11, "BFP16")],
        "CANN_API": [(T + 120, T + 130, 10000, HOST + 2, 5, 11), (T + 150, T + 155, 10000, HOST + 2, 6, 11)],
        "PYTORCH_API": [
            (str(T), str(T + 500), HOST + 1, None, 15, -1, 0, None, None, None, 50001),
            (str(T + 10), str(T + 100), HOST + 1, 1, 12, 4, 0, 17, 16, 1, 50001),
            (str(T + 50), str(T + 60), HOST + 1, 2, 13, None, None, None, None, None, 50002),
            (str(T + 110), str(T + 170), HOST + 2, 2, 14, None, None, None, None, None, 50002),
            (str(T + 1), str(T + 490), HOST + 1, None, 25, None, None, None, None, None, 50003),
        ],
        "CONNECTION_IDS": [(1, 5), (1, 6), (1, 1009), (2, 1007)],
        "PYTORCH_CALLCHAINS": [(1, 19, 1), (1, 18, 0)],
        "GC_RECORD": [(T + 300, T + 310, HOST + 1)],
        "MSTX_EVENTS": [(T + 320, T + 330, 23, HOST + 1)],
        "TASK_PMU_INFO": [(0, 20, 0.75), (0, 21, 1000), (0, 24, 3), (99, 20, 1)],
    }
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA.format(blocks=blocks))
        connection.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", STRINGS.items())
        for table, values in rows.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
    connection.close()
    return path


def executed(path: Path, *statements: str) -> Path:
    """Run statements on a database; return its file."""
    with sqlite3.connect(path) as connection:
        for each in statements:
            connection.execute(each)
    connection.close()
    return path


def write_analysis(path: Path) -> Path:
    """Write the tables of analysis.db for one collective over two links; return the file."""
    keys = "'hcom_allReduce__868_0_1', '42'"
    return executed(
        path,
        """CREATE TABLE CommAnalyzerTime (hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, elapse_time NUMERIC,
        transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC, idle_time NUMERIC, step TEXT, type TEXT)""",
        """CREATE TABLE CommAnalyzerBandwidth (hccl_op_name TEXT, group_name TEXT, transport_type TEXT,
        transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, large_packet_ratio NUMERIC, package_size NUMERIC,
        count NUMERIC, total_duration NUMERIC, step TEXT, type TEXT)""",
        f"INSERT INTO CommAnalyzerTime VALUES ({keys}, 1.5, 5, 0, 3, 3, 2, 'step7', 'collective')",
        f"INSERT INTO CommAnalyzerBandwidth VALUES ({keys}, 'HCCS', 2, 4, 0.5, 0, 1, 1, 2, 'step7', 'collective')",
        f"INSERT INTO CommAnalyzerBandwidth VALUES ({keys}, 'HCCS', 2, 4, 0.5, 0, 0.5, 2, 2, 'step7', 'collective')",
        "INSERT INTO CommAnalyzerBandwidth VALUES ('x', '1', 'RDMA', 2, 4, 0.5, 0, 1, 1, 2, 'step7', 'p2p')",
    )
